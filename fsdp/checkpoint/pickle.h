// Python's pickles as plain values: the part of the format that torch.save and torch.distributed.checkpoint
// write.
//
// Nothing is ever run. A class is its two names; an object is the class that would be called, the arguments
// of the call, the state and items that it would be given. Whoever reads a pickle asks for the classes that
// it knows, and passes over the rest. Opcodes are protocol 2 to 5 without extension codes, out-of-band
// buffers and the text forms of protocol 0; any other is refused by name.
//
// Values form a tree in which parts may be shared, and never a circle: what was fetched from the memo cannot
// change any more. Texts are views of the bytes that were parsed. Every count is bounded (PickleLimits), and
// memory is at most a constant times the bytes; a walk over shared parts is not bounded by that, so a reader
// counts what it visits.
//
// Thread safety: const. Errors: DATA_LOSS with the byte, for all that is wrong with the bytes.
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
  kDict,     // items: key, value, key, value ...; a repeated key is kept
  kClass,    // text: module, name
  kObject,   // items: class, arguments, state (or null), then what was appended or set, as of a list or dict
  kOutside,  // items: the name under which it is kept elsewhere (torch.save's storages)
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  bool fixed = false;  // Fetched from the memo.
  int depth = 1;       // Of the tree below it, itself included.
  union {
    int64_t integer = 0;
    double real;
  };
  absl::string_view text;
  absl::string_view name;
  std::vector<const PickleValue*> items;

  bool IsClass(absl::string_view module, absl::string_view class_name) const;
  // An object of this class, however it is made.
  bool IsObject(absl::string_view module, absl::string_view class_name) const;

  // REQUIRES: kObject.
  const PickleValue& of() const { return *items[0]; }
  const PickleValue& arguments() const { return *items[1]; }  // A tuple.
  const PickleValue* state() const { return items[2]; }

  // The value of a text key, as Python would find it: the last one. Null when it is not there, or this is no
  // dict.
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

  // Behind pointers, so that views and addresses stay when a Pickle moves.
  std::unique_ptr<std::string> bytes_;
  std::unique_ptr<std::deque<PickleValue>> values_;
  const PickleValue* root_ = nullptr;
};

// No overlong form, no surrogate, nothing beyond U+10FFFF: what may be shown and put into a message.
bool IsUtf8(absl::string_view text);

// "collections.OrderedDict", "a list", "text": for messages.
std::string DescribePickled(const PickleValue& value);

}  // namespace fsdpd
