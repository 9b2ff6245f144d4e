#include "tests/fuzzers/cases.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace fsdpd::fuzz {
namespace {

namespace pb = google::protobuf;
using Field = pb::FieldDescriptor;

constexpr size_t kSeparatorSize = sizeof(kSeparator) - 1;
// Values that often break code that counts, adds or indexes.
constexpr int64_t kNumbers[] = {0,  1,   2,          3,         7,         -1,        100,
                                -2, 127, 1000000000, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
// Names of the fuzzers' jobs, nodes and keys, and some unknown ones.
constexpr const char* kTexts[] = {"", "j", "n", "i", "k", "a/b", "..", "\n", "1", "/tmp", "ready/0"};

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  size_t Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  int64_t Number() {
    if (Below(3) > 0) return kNumbers[Below(std::size(kNumbers))];
    return static_cast<int64_t>(Below(4)) * (Below(2) == 0 ? 1 : 1'000'000'000);
  }
  double Real() {
    constexpr double kReals[] = {0, 1, -1, 1e308, -1e308, 1e-300};
    const size_t at = Below(std::size(kReals) + 2);
    if (at < std::size(kReals)) return kReals[at];
    return at == std::size(kReals) ? std::nan("") : 1.0 / 0.0 * static_cast<double>(Number() < 0 ? -1 : 1);
  }
  std::string Text() { return Below(20) == 0 ? std::string(5000, 'x') : kTexts[Below(std::size(kTexts))]; }

 private:
  std::minstd_rand random_;
};

// Sets a scalar field, or adds an element if it is repeated.
void SetScalar(pb::Message* message, const Field* field, Dice* dice) {
  const pb::Reflection& as = *message->GetReflection();
  const bool many = field->is_repeated();
  switch (field->cpp_type()) {
    case Field::CPPTYPE_INT32: {
      const auto value = static_cast<int32_t>(dice->Number());
      return many ? as.AddInt32(message, field, value) : as.SetInt32(message, field, value);
    }
    case Field::CPPTYPE_INT64: {
      const int64_t value = dice->Number();
      return many ? as.AddInt64(message, field, value) : as.SetInt64(message, field, value);
    }
    case Field::CPPTYPE_UINT32: {
      const auto value = static_cast<uint32_t>(dice->Number());
      return many ? as.AddUInt32(message, field, value) : as.SetUInt32(message, field, value);
    }
    case Field::CPPTYPE_UINT64: {
      const auto value = static_cast<uint64_t>(dice->Number());
      return many ? as.AddUInt64(message, field, value) : as.SetUInt64(message, field, value);
    }
    case Field::CPPTYPE_DOUBLE: {
      const double value = dice->Real();
      return many ? as.AddDouble(message, field, value) : as.SetDouble(message, field, value);
    }
    case Field::CPPTYPE_FLOAT: {
      const auto value = static_cast<float>(dice->Number());
      return many ? as.AddFloat(message, field, value) : as.SetFloat(message, field, value);
    }
    case Field::CPPTYPE_BOOL: {
      const bool value = dice->Below(2) == 0;
      return many ? as.AddBool(message, field, value) : as.SetBool(message, field, value);
    }
    case Field::CPPTYPE_ENUM: {
      // Enums are open in proto3.
      const auto value = static_cast<int>(dice->Below(20) == 0 ? 999 : dice->Below(12));
      return many ? as.AddEnumValue(message, field, value) : as.SetEnumValue(message, field, value);
    }
    case Field::CPPTYPE_STRING: {
      std::string value = dice->Text();
      return many ? as.AddString(message, field, std::move(value))
                  : as.SetString(message, field, std::move(value));
    }
    case Field::CPPTYPE_MESSAGE:
      return;
  }
}

// Changes a random field in `message` or in a nested message.
void Change(pb::Message* message, Dice* dice, int depth) {
  const pb::Descriptor& kind = *message->GetDescriptor();
  if (kind.field_count() == 0) return;
  const Field* const field =
      kind.field(static_cast<int>(dice->Below(static_cast<size_t>(kind.field_count()))));
  const pb::Reflection& as = *message->GetReflection();
  if (dice->Below(6) == 0) return as.ClearField(message, field);
  if (field->cpp_type() != Field::CPPTYPE_MESSAGE) return SetScalar(message, field, dice);
  pb::Message* below = nullptr;
  if (!field->is_repeated()) {
    below = as.MutableMessage(message, field);
  } else if (const int count = as.FieldSize(*message, field); count > 0 && dice->Below(3) > 0) {
    below =
        as.MutableRepeatedMessage(message, field, static_cast<int>(dice->Below(static_cast<size_t>(count))));
  } else {
    below = as.AddMessage(message, field);
  }
  if (depth < 6) Change(below, dice, depth + 1);
}

// Prefers nested messages that are set, because changing meaningful data finds more.
void ChangeSetField(pb::Message* message, Dice* dice) {
  const pb::Reflection& as = *message->GetReflection();
  std::vector<const Field*> set;
  as.ListFields(*message, &set);
  std::vector<pb::Message*> below;
  for (const Field* field : set) {
    if (field->cpp_type() != Field::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) below.push_back(as.MutableMessage(message, field));
    for (int i = 0; field->is_repeated() && i < as.FieldSize(*message, field); ++i)
      below.push_back(as.MutableRepeatedMessage(message, field, i));
  }
  if (below.empty() || dice->Below(4) == 0) return Change(message, dice, 0);
  ChangeSetField(below[dice->Below(below.size())], dice);
}

}  // namespace

void SilenceProtobufLog() { pb::SetLogHandler(nullptr); }

std::vector<std::string> SplitParts(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= bytes.size();) {
    const size_t end = std::min(bytes.find(kSeparator, begin), bytes.size());
    parts.push_back(bytes.substr(begin, end - begin));
    begin = end + kSeparatorSize;
  }
  return parts;
}

size_t Mutate(const pb::Message& kind, uint8_t* data, size_t size, size_t max_size, uint32_t seed) {
  Dice dice(seed);
  if (dice.Below(5) == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::vector<std::string> parts = SplitParts(data, size);
  const size_t at = dice.Below(parts.size());
  const std::unique_ptr<pb::Message> message(kind.New());
  switch (dice.Below(8)) {
    case 0:
      parts.insert(parts.begin() + static_cast<ptrdiff_t>(dice.Below(parts.size())), parts[at]);
      break;
    case 1:
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(at));
      break;
    case 2:
      parts.emplace_back();
      [[fallthrough]];
    default: {
      std::string& part = parts[dice.Below(3) == 0 ? parts.size() - 1 : at];
      if (!message->ParsePartialFromString(part)) message->Clear();
      for (size_t changes = 1 + dice.Below(3); changes > 0; --changes) ChangeSetField(message.get(), &dice);
      part = message->SerializePartialAsString();
    }
  }
  std::string bytes;
  for (size_t i = 0; i < parts.size(); ++i) bytes += (i == 0 ? "" : kSeparator) + parts[i];
  if (bytes.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}

}  // namespace fsdpd::fuzz
