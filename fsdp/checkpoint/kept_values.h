// What a checkpoint holds beside tensors and means the same in any format: numbers, texts and lists of them,
// by name. A conversion carries them as they are, so that what went there and back is what it was.
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/checkpoint/pickle.h"
#include "fsdp/checkpoint/pickle_writer.h"

namespace fsdpd {

struct KeptValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<KeptValue>> value;
};

using KeptValues = std::map<std::string, KeptValue>;

// None for what is of another kind (a class, bytes, a text that is no UTF-8), and for what is larger than
// anything that a job keeps: a list of a million.
std::optional<KeptValue> KeptOf(const PickleValue& value);

// As torch.save would pickle it.
void WriteKept(const KeptValue& kept, PickleWriter* writer);

// Where it is a text, and a number that is no less than 0; none otherwise, or where there is none.
std::optional<std::string> KeptText(const KeptValues& values, const std::string& name);
std::optional<int64_t> KeptCount(const KeptValues& values, const std::string& name);

}  // namespace fsdpd
