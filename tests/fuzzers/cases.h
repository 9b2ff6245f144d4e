// How a fuzzer's bytes become several messages: parted by a mark, which survives what libFuzzer inserts and
// removes between two of them, as lengths would not.
#pragma once

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fsdpd::fuzz {

constexpr char kMark[] = "\xff\xfe\xfd\xfc";  // In no UTF-8, and rarely in a message.

// protobuf says of each part that is no message why.
void BeQuiet();

std::vector<std::string> Parted(const uint8_t* data, size_t size);

// Those parts that are a message.
template <typename Message>
std::vector<Message> Messages(const uint8_t* data, size_t size) {
  BeQuiet();
  std::vector<Message> messages;
  for (const std::string& part : Parted(data, size)) {
    if (!messages.emplace_back().ParseFromString(part)) messages.pop_back();
  }
  return messages;
}

// For LLVMFuzzerCustomMutator: mostly one field of one of the messages is set, cleared or added, by
// reflection, so that what comes out is a message again; now and then libFuzzer's own changes.
size_t Mutate(const google::protobuf::Message& kind, uint8_t* data, size_t size, size_t most, uint32_t seed);

}  // namespace fsdpd::fuzz
