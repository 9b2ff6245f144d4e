// Parser for the index of Megatron's indexed dataset: tokens are in PATH.bin; PATH.idx has the type of token
// ids and the position of each sequence. Little-endian:
//
//   byte 0   9 bytes "MMIDIDX\0\0"
//        9   u64     version, 1
//       17   u8      type of an id: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (6 and 7 are floating point)
//       18   u64     sequences
//       26   u64     entries of the document table
//       34   i32     tokens of each sequence
//            i64     byte of each sequence in PATH.bin
//            i64     documents: 0, then the number of sequences up to the end of each document
//            i8      mode of each sequence, in multimodal data only; not used here
//
// All writers store sequences contiguously, so a validated index reduces to a type and a number of tokens,
// and PATH.bin is then read as a flat file. A gap is rejected: it is more likely a corrupt pointer than
// intended, and the wrong tokens would be trained on silently. As in Megatron, PATH.bin may be longer than
// the index says.
//
// The whole index is validated when it is opened, in pieces of constant size: it reads 12 bytes per sequence
// and keeps none. Errors: INVALID_ARGUMENT, and those of input_file.h; each names the file and the byte.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "fsdp/data/input_file.h"
#include "fsdp/data/stored_id.h"

namespace fsdpd {

struct MegatronIndex {
  StoredId type = StoredId::kI32;
  int64_t tokens = 0;  // From byte 0 of PATH.bin.
  int64_t sequences = 0;
  int64_t documents = 0;
};

absl::StatusOr<MegatronIndex> ReadMegatronIndex(const InputFile& idx, const InputFile& bin);

}  // namespace fsdpd
