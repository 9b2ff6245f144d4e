#include "fsdp/checkpoint/format/pickle.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr size_t kStateItem = 2;
constexpr size_t kMaxShownName = 1000;

class Parser {
 public:
  Parser(absl::string_view bytes, const PickleLimits& limits, std::deque<PickleValue>* values)
      : bytes_(bytes), limits_(limits), values_(values) {}

  absl::StatusOr<const PickleValue*> Run() {
    while (true) {
      opcode_at_ = at_;
      if (at_ >= bytes_.size()) return Bad("pickle ends without STOP");
      const auto code = static_cast<uint8_t>(bytes_[at_++]);
      if (code == '.') break;
      const Opcode& opcode = Opcodes()[code];
      if (opcode.run == nullptr) return Bad(absl::StrFormat("opcode 0x%02x is not supported", code));
      FSDPD_RETURN_IF_ERROR((this->*opcode.run)(opcode));
    }
    if (stack_.size() != 1 || !marks_.empty())
      return Bad("the stack does not hold exactly one value at STOP");
    return stack_.front();
  }

 private:
  using Kind = PickleKind;

  struct Opcode {
    uint8_t code = 0;
    absl::Status (Parser::*run)(const Opcode&) = nullptr;
    // Bytes of the argument, items to take from the stack (0: those above the MARK), or a constant.
    size_t number = 0;
    Kind kind = Kind::kNone;
  };

  // The supported opcodes by code, with the names of Python's pickletools.
  static const std::array<Opcode, 256>& Opcodes() {
    static const auto* const opcodes = [] {
      constexpr Opcode kSupported[] = {
          {0x80, &Parser::CheckProtocol},             // PROTO
          {0x95, &Parser::SkipFrame},                 // FRAME
          {'(', &Parser::Mark},                       // MARK
          {'0', &Parser::PopOne},                     // POP
          {'1', &Parser::PopMarked},                  // POP_MARK
          {'2', &Parser::Duplicate},                  // DUP
          {'h', &Parser::Get, 1},                     // BINGET
          {'j', &Parser::Get, 4},                     // LONG_BINGET
          {'q', &Parser::Put, 1},                     // BINPUT
          {'r', &Parser::Put, 4},                     // LONG_BINPUT
          {0x94, &Parser::Put, 0},                    // MEMOIZE
          {'N', &Parser::Constant, 0, Kind::kNone},   // NONE
          {0x88, &Parser::Constant, 1, Kind::kBool},  // NEWTRUE
          {0x89, &Parser::Constant, 0, Kind::kBool},  // NEWFALSE
          {']', &Parser::Constant, 0, Kind::kList},   // EMPTY_LIST
          {')', &Parser::Constant, 0, Kind::kTuple},  // EMPTY_TUPLE
          {'}', &Parser::Constant, 0, Kind::kDict},   // EMPTY_DICT
          {0x8f, &Parser::Constant, 0, Kind::kSet},   // EMPTY_SET
          {'K', &Parser::Int, 1},                     // BININT1
          {'M', &Parser::Int, 2},                     // BININT2
          {'J', &Parser::Int, 4},                     // BININT
          {0x8a, &Parser::Long, 1},                   // LONG1
          {0x8b, &Parser::Long, 4},                   // LONG4
          {'G', &Parser::Float},                      // BINFLOAT
          {0x8c, &Parser::Text, 1, Kind::kString},    // SHORT_BINUNICODE
          {'X', &Parser::Text, 4, Kind::kString},     // BINUNICODE
          {0x8d, &Parser::Text, 8, Kind::kString},    // BINUNICODE8
          {'C', &Parser::Text, 1, Kind::kBytes},      // SHORT_BINBYTES
          {'B', &Parser::Text, 4, Kind::kBytes},      // BINBYTES
          {0x8e, &Parser::Text, 8, Kind::kBytes},     // BINBYTES8
          {0x96, &Parser::Text, 8, Kind::kBytes},     // BYTEARRAY8
          {0x85, &Parser::Make, 1, Kind::kTuple},     // TUPLE1
          {0x86, &Parser::Make, 2, Kind::kTuple},     // TUPLE2
          {0x87, &Parser::Make, 3, Kind::kTuple},     // TUPLE3
          {'t', &Parser::Make, 0, Kind::kTuple},      // TUPLE
          {'l', &Parser::Make, 0, Kind::kList},       // LIST
          {'d', &Parser::Make, 0, Kind::kDict},       // DICT
          {0x91, &Parser::Make, 0, Kind::kSet},       // FROZENSET
          {'a', &Parser::Extend, 1, Kind::kList},     // APPEND
          {'s', &Parser::Extend, 2, Kind::kDict},     // SETITEM
          {'e', &Parser::Extend, 0, Kind::kList},     // APPENDS
          {0x90, &Parser::Extend, 0, Kind::kSet},     // ADDITEMS
          {'u', &Parser::Extend, 0, Kind::kDict},     // SETITEMS
          {'c', &Parser::Global},                     // GLOBAL
          {0x93, &Parser::StackGlobal},               // STACK_GLOBAL
          {'R', &Parser::NewObject, 2},               // REDUCE
          {0x81, &Parser::NewObject, 2},              // NEWOBJ
          {0x92, &Parser::NewObject, 3},              // NEWOBJ_EX
          {'b', &Parser::Build},                      // BUILD
          {'Q', &Parser::Outside},                    // BINPERSID
      };
      auto* const by_code = new std::array<Opcode, 256>();
      for (const Opcode& opcode : kSupported) (*by_code)[opcode.code] = opcode;
      return by_code;
    }();
    return *opcodes;
  }

  absl::Status Bad(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat("invalid pickle, byte ", opcode_at_, ": ", what));
  }

  // --- Bytes ---

  absl::Status Take(uint64_t count, absl::string_view* taken) {
    if (count > bytes_.size() - at_) return Bad("truncated opcode");
    *taken = bytes_.substr(at_, count);
    at_ += count;
    return absl::OkStatus();
  }

  absl::Status TakeUnsigned(size_t width, uint64_t* value) {
    absl::string_view taken;
    FSDPD_RETURN_IF_ERROR(Take(width, &taken));
    *value = 0;
    memcpy(value, taken.data(), width);
    return absl::OkStatus();
  }

  // Bytes with their length in front.
  absl::Status TakeSized(size_t width, absl::string_view* taken) {
    uint64_t size = 0;
    FSDPD_RETURN_IF_ERROR(TakeUnsigned(width, &size));
    return Take(size, taken);
  }

  absl::Status TakeLine(absl::string_view* line) {
    const size_t end = bytes_.find('\n', at_);
    if (end == absl::string_view::npos) return Bad("unterminated name");
    *line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return absl::OkStatus();
  }

  // --- The stack. Values below the topmost MARK are inaccessible until it is popped. ---

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  absl::Status Need(size_t count) const {
    return stack_.size() - floor() >= count ? absl::OkStatus() : Bad("stack underflow");
  }

  absl::StatusOr<PickleValue*> Push(Kind kind) {
    if (static_cast<int64_t>(values_->size()) >= limits_.values) {
      return Bad(absl::StrCat("more than ", limits_.values, " values"));
    }
    values_->emplace_back();
    values_->back().kind = kind;
    stack_.push_back(&values_->back());
    return stack_.back();
  }

  PickleValue* Pop() {
    PickleValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }

  // Pops the topmost `count` values; 0: those above the topmost MARK, and the MARK.
  absl::StatusOr<std::vector<PickleValue*>> PopItems(size_t count) {
    if (count == 0 && marks_.empty()) return Bad("no MARK on the stack");
    if (count > 0) FSDPD_RETURN_IF_ERROR(Need(count));
    const size_t begin = count > 0 ? stack_.size() - count : marks_.back();
    std::vector<PickleValue*> items(stack_.begin() + static_cast<int64_t>(begin), stack_.end());
    stack_.resize(begin);
    if (count == 0) marks_.pop_back();
    return items;
  }

  absl::StatusOr<std::vector<PickleValue*>> PopItemsOf(const Opcode& opcode) {
    FSDPD_ASSIGN_OR_RETURN(std::vector<PickleValue*> items, PopItems(opcode.number));
    if (opcode.kind == Kind::kDict && items.size() % 2 != 0) return Bad("key without a value");
    return items;
  }

  // A child is immutable from here on: it has left the stack, and is fixed if it comes back from the memo.
  absl::Status Add(PickleValue* parent, const PickleValue* child) {
    parent->items.push_back(child);
    parent->depth = std::max(parent->depth, child->depth + 1);
    return parent->depth <= limits_.depth
               ? absl::OkStatus()
               : Bad(absl::StrCat("nested more than ", limits_.depth, " levels deep"));
  }

  absl::Status AddAll(PickleValue* parent, const std::vector<PickleValue*>& children) {
    parent->items.reserve(parent->items.size() + children.size());
    for (const PickleValue* child : children) FSDPD_RETURN_IF_ERROR(Add(parent, child));
    return absl::OkStatus();
  }

  absl::Status Mutable(const PickleValue* value) const {
    return value->fixed ? Bad("modifies a value that is already shared") : absl::OkStatus();
  }

  // Pushes a value that is also elsewhere.
  absl::Status PushShared(PickleValue* value) {
    value->fixed = true;
    stack_.push_back(value);
    return absl::OkStatus();
  }

  // --- Opcodes ---

  absl::Status CheckProtocol(const Opcode&) {
    uint64_t number = 0;
    FSDPD_RETURN_IF_ERROR(TakeUnsigned(1, &number));
    return number <= 5 ? absl::OkStatus() : Bad(absl::StrCat("protocol ", number));
  }

  absl::Status SkipFrame(const Opcode&) {  // A hint for readers that prefetch.
    uint64_t bytes = 0;
    return TakeUnsigned(8, &bytes);
  }

  absl::Status Mark(const Opcode&) {
    marks_.push_back(stack_.size());
    return absl::OkStatus();
  }

  absl::Status PopOne(const Opcode&) {
    if (stack_.size() == floor() && !marks_.empty()) {
      marks_.pop_back();
      return absl::OkStatus();
    }
    return PopItems(1).status();
  }

  absl::Status PopMarked(const Opcode&) { return PopItems(0).status(); }

  absl::Status Duplicate(const Opcode&) {
    FSDPD_RETURN_IF_ERROR(Need(1));
    return PushShared(stack_.back());
  }

  absl::Status Get(const Opcode& opcode) {
    uint64_t index = 0;
    FSDPD_RETURN_IF_ERROR(TakeUnsigned(opcode.number, &index));
    if (index >= memo_.size() || memo_[index] == nullptr) return Bad(absl::StrCat("unknown memo ", index));
    return PushShared(memo_[index]);
  }

  absl::Status Put(const Opcode& opcode) {
    uint64_t index = memo_.size();
    if (opcode.number > 0) FSDPD_RETURN_IF_ERROR(TakeUnsigned(opcode.number, &index));
    FSDPD_RETURN_IF_ERROR(Need(1));
    // Memo indices are consecutive from 0: one beyond the byte count is damage, and must not allocate memory.
    if (index > opcode_at_) return Bad(absl::StrCat("memo ", index, " is out of order"));
    if (index >= memo_.size()) memo_.resize(index + 1, nullptr);
    memo_[index] = stack_.back();
    return absl::OkStatus();
  }

  absl::Status Constant(const Opcode& opcode) {
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(opcode.kind));
    value->integer = static_cast<int64_t>(opcode.number);
    return absl::OkStatus();
  }

  absl::Status Int(const Opcode& opcode) {
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(Kind::kInt));
    uint64_t bits = 0;
    FSDPD_RETURN_IF_ERROR(TakeUnsigned(opcode.number, &bits));
    value->integer = static_cast<int32_t>(bits);  // Only the one with 4 bytes has a sign.
    return absl::OkStatus();
  }

  absl::Status Float(const Opcode&) {
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(Kind::kFloat));
    uint64_t bits = 0;
    FSDPD_RETURN_IF_ERROR(TakeUnsigned(8, &bits));
    bits = __builtin_bswap64(bits);
    memcpy(&value->real, &bits, sizeof(bits));
    return absl::OkStatus();
  }

  absl::Status Long(const Opcode& opcode) {
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(Kind::kInt));
    absl::string_view digits;
    FSDPD_RETURN_IF_ERROR(TakeSized(opcode.number, &digits));
    if (digits.size() > 8) {
      value->kind = Kind::kBigInt;
      value->text = digits;
      return absl::OkStatus();
    }
    uint64_t bits = !digits.empty() && (digits.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    memcpy(&bits, digits.data(), digits.size());
    value->integer = static_cast<int64_t>(bits);
    return absl::OkStatus();
  }

  absl::Status Text(const Opcode& opcode) {
    absl::string_view text;
    FSDPD_RETURN_IF_ERROR(TakeSized(opcode.number, &text));
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(opcode.kind));
    value->text = text;
    return absl::OkStatus();
  }

  absl::Status Make(const Opcode& opcode) {
    FSDPD_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items, PopItemsOf(opcode));
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(opcode.kind));
    return AddAll(value, items);
  }

  // Adds items to the container of this kind on the stack, or to an object that acts like one.
  absl::Status Extend(const Opcode& opcode) {
    FSDPD_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items, PopItemsOf(opcode));
    FSDPD_RETURN_IF_ERROR(Need(1));
    PickleValue* value = stack_.back();
    if (value->kind != opcode.kind && value->kind != Kind::kObject)
      return Bad("items for a value that is not a container");
    FSDPD_RETURN_IF_ERROR(Mutable(value));
    return AddAll(value, items);
  }

  absl::Status Global(const Opcode&) {
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(Kind::kClass));
    FSDPD_RETURN_IF_ERROR(TakeLine(&value->text));
    return TakeLine(&value->name);
  }

  absl::Status StackGlobal(const Opcode&) {
    FSDPD_RETURN_IF_ERROR(Need(2));
    const PickleValue* name = Pop();
    const PickleValue* module = Pop();
    if (name->kind != Kind::kString || module->kind != Kind::kString)
      return Bad("class name is not a string");
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(Kind::kClass));
    value->text = module->text;
    value->name = name->text;
    return absl::OkStatus();
  }

  absl::Status NewObject(const Opcode& opcode) {
    FSDPD_RETURN_IF_ERROR(Need(opcode.number));
    if (opcode.number == 3) {
      const PickleValue* named = Pop();
      if (named->kind != Kind::kDict || !named->items.empty())
        return Bad("keyword arguments are not supported");
    }
    const PickleValue* arguments = Pop();
    const PickleValue* of = Pop();
    if (of->kind != Kind::kClass) return Bad("the class of an object is not a name");
    if (arguments->kind != Kind::kTuple) return Bad("the arguments of an object are not a tuple");
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(Kind::kObject));
    FSDPD_RETURN_IF_ERROR(Add(value, of));
    FSDPD_RETURN_IF_ERROR(Add(value, arguments));
    value->items.push_back(nullptr);
    return absl::OkStatus();
  }

  absl::Status Build(const Opcode&) {
    FSDPD_RETURN_IF_ERROR(Need(2));
    const PickleValue* state = Pop();
    PickleValue* object = stack_.back();
    if (object->kind != Kind::kObject) return Bad("BUILD of a value that is not an object");
    if (object->state() != nullptr) return Bad("second BUILD of one object");
    FSDPD_RETURN_IF_ERROR(Mutable(object));
    FSDPD_RETURN_IF_ERROR(Add(object, state));
    object->items[kStateItem] = state;
    object->items.pop_back();
    return absl::OkStatus();
  }

  absl::Status Outside(const Opcode&) {
    FSDPD_RETURN_IF_ERROR(Need(1));
    const PickleValue* id = Pop();
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(Kind::kOutside));
    return Add(value, id);
  }

  const absl::string_view bytes_;
  const PickleLimits& limits_;
  std::deque<PickleValue>* const values_;
  size_t at_ = 0, opcode_at_ = 0;
  std::vector<PickleValue*> stack_, memo_;
  std::vector<size_t> marks_;
};

std::string ClassName(const PickleValue& value) {
  if (!IsUtf8(value.text) || !IsUtf8(value.name)) return "(not UTF-8)";
  if (value.text.size() + value.name.size() > kMaxShownName) return "(a long name)";
  return absl::StrCat(value.text, ".", value.name);
}

}  // namespace

bool PickleValue::IsClass(absl::string_view module, absl::string_view class_name) const {
  return kind == PickleKind::kClass && text == module && name == class_name;
}

bool PickleValue::IsObject(absl::string_view module, absl::string_view class_name) const {
  return kind == PickleKind::kObject && of().IsClass(module, class_name);
}

const PickleValue* PickleValue::Find(absl::string_view key) const {
  if (kind != PickleKind::kDict) return nullptr;
  for (size_t i = items.size(); i >= 2; i -= 2) {
    const PickleValue& found = *items[i - 2];
    if (found.kind == PickleKind::kString && found.text == key) return items[i - 1];
  }
  return nullptr;
}

absl::StatusOr<Pickle> Pickle::Parse(std::string bytes, const PickleLimits& limits) {
  if (static_cast<int64_t>(bytes.size()) > limits.bytes) {
    return absl::DataLossError(
        absl::StrCat("pickle is too large (got ", bytes.size(), " bytes, want at most ", limits.bytes, ")"));
  }
  Pickle pickle;
  pickle.bytes_ = std::make_unique<std::string>(std::move(bytes));
  pickle.values_ = std::make_unique<std::deque<PickleValue>>();
  FSDPD_ASSIGN_OR_RETURN(pickle.root_, Parser(*pickle.bytes_, limits, pickle.values_.get()).Run());
  return pickle;
}

bool IsUtf8(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto first = static_cast<uint8_t>(text[at]);
    const size_t more = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || text.size() - at <= more) return false;
    uint32_t point = more == 0 ? first : first & (0x3f >> more);
    for (size_t i = 1; i <= more; ++i) {
      const auto next = static_cast<uint8_t>(text[at + i]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (point < kLeast[more] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
    at += more + 1;
  }
  return true;
}

std::string DescribePickled(const PickleValue& value) {
  switch (value.kind) {
    case PickleKind::kBool:
      return value.integer != 0 ? "True" : "False";
    case PickleKind::kInt:
      return absl::StrCat(value.integer);
    case PickleKind::kFloat:
      // The sign of a NaN has no meaning, and differs between machines.
      return std::isnan(value.real) ? "nan" : absl::StrCat(value.real);
    case PickleKind::kClass:
      return absl::StrCat("the class ", ClassName(value));
    case PickleKind::kObject:
      return ClassName(value.of());
    default:
      break;
  }
  constexpr const char* kOthers[] = {"None",    "",         "",       "an integer of more than 64 bits",
                                     "",        "a string", "bytes",  "a list",
                                     "a tuple", "a set",    "a dict", "",
                                     "",        "a storage"};
  return kOthers[static_cast<size_t>(value.kind)];
}

}  // namespace fsdpd
