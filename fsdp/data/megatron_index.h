// Megatron's indexed dataset: tokens in PATH.bin, and PATH.idx, which says how ids are stored and where each
// sequence of the stream lies. Little-endian:
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
// Every writer puts sequences one after the other, so a checked index is no more than a type and a number of
// tokens: the file is then read as a flat one. A gap is refused, since it is more likely a damaged pointer
// than a choice, and the wrong tokens would train without a word. A PATH.bin that is longer than the index
// says is allowed, as Megatron does.
//
// The whole index is checked when it is opened, in pieces of constant size: 12 bytes a sequence are read,
// none are kept. Errors: INVALID_ARGUMENT, and those of input_file.h; each names the file and the byte.
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
