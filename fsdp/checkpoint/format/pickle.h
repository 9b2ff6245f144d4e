// Parser for Python pickles, for the subset that torch.save and torch.distributed.checkpoint write; produces
// plain values.
//
// Nothing is executed. A class is represented by its two names; an object by the class that would be called,
// the arguments, and the state and items that it would receive. Callers look for the classes they know and
// ignore the rest. Supported opcodes: protocol 2 to 5 without extension codes, out-of-band buffers and the
// text forms of protocol 0; any other is rejected by name.
//
// Values form a DAG without cycles: a value that was fetched from the memo cannot change any more. Texts are
// views of the parsed bytes. All counts are bounded (PickleLimits), and memory is at most a constant factor
// of the input. Walking over shared parts is not bounded, so callers must count what they visit.
//
// Const methods are thread-safe. Errors: DATA_LOSS with the byte.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace fsdpd {

enum class PickleKind : uint8_t {
  kNone,
  kBool,     // integer
  kInt,      // integer
  kBigInt,   // text: little-endian two's complement of more than 8 bytes
  kFloat,    // real
  kString,   // text; UTF-8 is not checked
  kBytes,    // text
  kList,     // items
  kTuple,    // items
  kSet,      // items
  kDict,     // items: key, value, key, value ...; duplicate keys are retained
  kClass,    // text: module, name
  kObject,   // items: class, arguments, state (or null), then what was appended or set, as of a list or dict
  kOutside,  // items: the id of data stored elsewhere (torch.save's storages)
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  bool fixed = false;  // Fetched from the memo.
  int depth = 1;       // Depth of its subtree, including itself.
  union {
    int64_t integer = 0;
    double real;
  };
  absl::string_view text;
  absl::string_view name;
  std::vector<const PickleValue*> items;

  bool IsClass(absl::string_view module, absl::string_view class_name) const;
  // Whether it is an object of this class, however constructed.
  bool IsObject(absl::string_view module, absl::string_view class_name) const;

  // REQUIRES: kObject.
  const PickleValue& of() const { return *items[0]; }
  const PickleValue& arguments() const { return *items[1]; }  // A tuple.
  const PickleValue* state() const { return items[2]; }

  // The value of a text key, with Python's semantics: the last one. Null if absent, or if this is not a dict.
  const PickleValue* Find(absl::string_view key) const;
};

struct PickleLimits {
  int64_t bytes = int64_t{1} << 30;  // Ten times the .metadata of 80 layers on 4096 ranks.
  int64_t values = 48 << 20;         // 100 bytes each.
  int depth = 64;                    // Nested dicts of real jobs stay under 20.
};

class Pickle {
 public:
  static absl::StatusOr<Pickle> Parse(std::string bytes, const PickleLimits& limits = PickleLimits());

  const PickleValue& root() const { return *root_; }

 private:
  Pickle() = default;

  // Behind pointers, so that views and addresses stay valid when a Pickle is moved.
  std::unique_ptr<std::string> bytes_;
  std::unique_ptr<std::deque<PickleValue>> values_;
  const PickleValue* root_ = nullptr;
};

// Strict UTF-8: no overlong forms, surrogates or code points beyond U+10FFFF. Safe to show in messages.
bool IsUtf8(absl::string_view text);

// "collections.OrderedDict", "a list", "text": for messages.
std::string DescribePickled(const PickleValue& value);

}  // namespace fsdpd
