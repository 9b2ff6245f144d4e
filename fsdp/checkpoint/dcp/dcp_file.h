// Layout of one checkpoint file, computed before any of it is written: the position of each piece follows
// from names, types and shapes only. Each rank can therefore compute the layout of every other rank's file,
// and the committing rank only needs to know that a file is complete, and its checksum (CommitDcp).
//
// Thread safety: plain data.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_index.h"

namespace fsdpd {

// A rectangle of a tensor, stored in row-major order.
struct DcpPiece {
  std::string name;
  const TensorType* type = nullptr;
  std::vector<int64_t> shape;  // Shape of the whole tensor.
  Rectangle at;
};

// Elements [begin, begin + elements) of a flattened tensor, as in an FSDP shard, as pieces. Pieces are in
// order and adjacent in memory. REQUIRES: the range is within `shape`.
std::vector<DcpPiece> PiecesOfRun(const std::string& name, const TensorType* type,
                                  const std::vector<int64_t>& shape, int64_t begin, int64_t elements);

// A small entry that is not a tensor.
struct DcpSmall {
  std::string name;
  std::string record;  // As written by torch.save (TorchSaved).
};

struct DcpFile {
  std::string name;
  std::vector<DcpPiece> pieces;
  std::vector<int64_t> piece_begins;  // Position of each piece's record.
  std::vector<int64_t> piece_bytes;
  std::vector<DcpSmall> values;
  std::vector<int64_t> value_begins;
  int64_t bytes = 0;
};

// Torch's name for file `number` of a rank: "__3_0.distcp". A rank that writes several files in parallel uses
// several numbers.
std::string DcpFileName(int rank, int number = 0);

DcpFile LayOut(std::string name, std::vector<DcpPiece> pieces, std::vector<DcpSmall> values = {});

// The index of a checkpoint of these files. INVALID_ARGUMENT if two of them contradict each other about a
// tensor, or share a name. CheckIndex() finds all other problems.
absl::StatusOr<DcpIndex> IndexOf(const std::vector<const DcpFile*>& files);

}  // namespace fsdpd
