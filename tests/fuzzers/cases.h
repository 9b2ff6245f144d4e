// Splitting of a fuzzer's input into messages at a separator. A separator survives insertions and removals by
// libFuzzer, in contrast to length prefixes.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fsdpd::fuzz {

constexpr char kSeparator[] = "\xff\xfe\xfd\xfc";  // Invalid in UTF-8, and rare in messages.

// Disables protobuf's log of parse errors.
void SilenceProtobufLog();

std::vector<std::string> SplitParts(const uint8_t* data, size_t size);

// The parts that parse as this message.
template <typename Message>
std::vector<Message> Messages(const uint8_t* data, size_t size) {
  SilenceProtobufLog();
  std::vector<Message> messages;
  for (const std::string& part : SplitParts(data, size)) {
    if (!messages.emplace_back().ParseFromString(part)) messages.pop_back();
  }
  return messages;
}

// For LLVMFuzzerCustomMutator. Usually sets, clears or adds one field of one message by reflection, so that
// the result parses; sometimes applies libFuzzer's own mutation.
size_t Mutate(const google::protobuf::Message& kind, uint8_t* data, size_t size, size_t max_size,
              uint32_t seed);

}  // namespace fsdpd::fuzz
