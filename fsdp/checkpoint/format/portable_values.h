// Checkpoint values other than tensors that mean the same in any format: numbers, texts and lists of them, by
// name. Conversions copy them unchanged, so that a round trip preserves them.
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/checkpoint/format/pickle_writer.h"

namespace fsdpd {

struct PortableValue {
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<PortableValue>> value;
};

using PortableValues = std::map<std::string, PortableValue>;

// Nullopt for other kinds (a class, bytes, text that is not UTF-8), and for values larger than any of a job
// (a list of a million).
std::optional<PortableValue> ToPortable(const PickleValue& value);

// Pickles it like torch.save.
void WritePortable(const PortableValue& kept, PickleWriter* writer);
std::string SavedPortable(const PortableValue& kept);  // A whole record (TorchSaved).

// The value if it is a text, or a nonnegative number; otherwise nullopt.
std::optional<std::string> PortableText(const PortableValues& values, const std::string& name);
std::optional<int64_t> PortableCount(const PortableValues& values, const std::string& name);

}  // namespace fsdpd
