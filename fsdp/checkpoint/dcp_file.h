// One file of a checkpoint, laid out before a byte of it is there: where each piece of a rank goes follows
// from names, types and shapes alone. So every rank can compute the layout of every other, and the one who
// commits has to be told no more than that a file is complete, and its sum (CommitDcp).
//
// Thread safety: plain data.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_index.h"

namespace fsdpd {

// A rectangle of a tensor, whose numbers lie in memory in row-major order.
struct DcpPiece {
  std::string name;
  const TensorType* type = nullptr;
  std::vector<int64_t> shape;  // Of the whole tensor.
  Rectangle at;
};

// Numbers [begin, begin + elements) of a flattened tensor, as a shard has them, as pieces: in order, so that
// in memory one begins where the other ends. REQUIRES: they are within `shape`.
std::vector<DcpPiece> PiecesOfRun(const std::string& name, const TensorType* type,
                                  const std::vector<int64_t>& shape, int64_t begin, int64_t elements);

// Something small that is no tensor.
struct DcpSmall {
  std::string name;
  std::string record;  // What torch.save writes (TorchSaved).
};

struct DcpFile {
  std::string name;
  std::vector<DcpPiece> pieces;
  std::vector<int64_t> piece_begins;  // Of each one's record.
  std::vector<int64_t> piece_bytes;
  std::vector<DcpSmall> values;
  std::vector<int64_t> value_begins;
  int64_t bytes = 0;
};

// As torch names the file `number` of a rank: "__3_0.distcp". A rank that writes with several files at once
// has several.
std::string DcpFileName(int rank, int number = 0);

DcpFile LayOut(std::string name, std::vector<DcpPiece> pieces, std::vector<DcpSmall> values = {});

// What a checkpoint of these files holds. INVALID_ARGUMENT where two of them contradict each other about a
// tensor, or have a name in common. CheckIndex() tells the rest.
absl::StatusOr<DcpIndex> IndexOf(const std::vector<const DcpFile*>& files);

}  // namespace fsdpd
