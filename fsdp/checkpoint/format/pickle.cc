#include "fsdp/checkpoint/format/pickle.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr size_t kStateItem = 2;
constexpr size_t kMaxShownName = 1000;

// The supported opcodes, with the names of Python's pickletools.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersid = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

class Parser {
 public:
  Parser(absl::string_view bytes, const PickleLimits& limits, std::deque<PickleValue>* values)
      : bytes_(bytes), limits_(limits), values_(values) {}

  absl::StatusOr<const PickleValue*> Run() {
    while (true) {
      opcode_at_ = at_;
      if (at_ >= bytes_.size()) return Bad("pickle ends without STOP");
      const auto opcode = static_cast<uint8_t>(bytes_[at_++]);
      if (opcode == kStop) break;
      FSDPD_RETURN_IF_ERROR(Step(opcode));
    }
    if (stack_.size() != 1 || !marks_.empty())
      return Bad("the stack does not hold exactly one value at STOP");
    return stack_.front();
  }

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat("invalid pickle, byte ", opcode_at_, ": ", what));
  }

  absl::Status Step(uint8_t opcode) {
    switch (opcode) {
      case kProto:
      case kFrame:
      case kMark:
      case kPop:
      case kPopMark:
      case kDup:
        return Structure(opcode);
      case kBinGet:
      case kLongBinGet:
      case kBinPut:
      case kLongBinPut:
      case kMemoize:
        return Memo(opcode);
      case kNone:
      case kNewTrue:
      case kNewFalse:
      case kBinInt:
      case kBinInt1:
      case kBinInt2:
      case kLong1:
      case kLong4:
      case kBinFloat:
        return Number(opcode);
      case kShortBinUnicode:
      case kBinUnicode:
      case kBinUnicode8:
        return Text(PickleKind::kString, opcode == kShortBinUnicode ? 1 : opcode == kBinUnicode ? 4 : 8);
      case kShortBinBytes:
      case kBinBytes:
      case kBinBytes8:
      case kByteArray8:
        return Text(PickleKind::kBytes, opcode == kShortBinBytes ? 1 : opcode == kBinBytes ? 4 : 8);
      case kGlobal:
      case kStackGlobal:
      case kReduce:
      case kNewObj:
      case kNewObjEx:
      case kBuild:
      case kBinPersid:
        return Object(opcode);
      default:
        return Container(opcode);
    }
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

  absl::StatusOr<PickleValue*> Push(PickleKind kind) {
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

  // Pops the values above the topmost MARK, and the MARK.
  absl::StatusOr<std::vector<PickleValue*>> PopToMark() {
    if (marks_.empty()) return Bad("no MARK on the stack");
    std::vector<PickleValue*> above(stack_.begin() + static_cast<int64_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return above;
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

  // --- Opcodes ---

  absl::Status Structure(uint8_t opcode) {
    uint64_t number = 0;
    switch (opcode) {
      case kProto:
        FSDPD_RETURN_IF_ERROR(TakeUnsigned(1, &number));
        return number <= 5 ? absl::OkStatus() : Bad(absl::StrCat("protocol ", number));
      case kFrame:
        // A hint for readers that prefetch.
        return TakeUnsigned(8, &number);
      case kMark:
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case kPop:
        if (stack_.size() == floor() && !marks_.empty()) {
          marks_.pop_back();
          return absl::OkStatus();
        }
        FSDPD_RETURN_IF_ERROR(Need(1));
        Pop();
        return absl::OkStatus();
      case kPopMark:
        return PopToMark().status();
      default:
        FSDPD_RETURN_IF_ERROR(Need(1));
        stack_.back()->fixed = true;
        stack_.push_back(stack_.back());
        return absl::OkStatus();
    }
  }

  absl::Status Memo(uint8_t opcode) {
    uint64_t index = memo_.size();
    if (opcode != kMemoize) {
      FSDPD_RETURN_IF_ERROR(TakeUnsigned(opcode == kBinGet || opcode == kBinPut ? 1 : 4, &index));
    }
    if (opcode == kBinGet || opcode == kLongBinGet) {
      if (index >= memo_.size() || memo_[index] == nullptr) return Bad(absl::StrCat("unknown memo ", index));
      memo_[index]->fixed = true;
      stack_.push_back(memo_[index]);
      return absl::OkStatus();
    }
    FSDPD_RETURN_IF_ERROR(Need(1));
    // Memo indices are consecutive from 0: one beyond the byte count is damage, and must not allocate memory.
    if (index > opcode_at_) return Bad(absl::StrCat("memo ", index, " is out of order"));
    if (index >= memo_.size()) memo_.resize(index + 1, nullptr);
    memo_[index] = stack_.back();
    return absl::OkStatus();
  }

  absl::Status Number(uint8_t opcode) {
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(PickleKind::kInt));
    uint64_t bits = 0;
    switch (opcode) {
      case kNone:
        value->kind = PickleKind::kNone;
        return absl::OkStatus();
      case kNewTrue:
      case kNewFalse:
        value->kind = PickleKind::kBool;
        value->integer = opcode == kNewTrue ? 1 : 0;
        return absl::OkStatus();
      case kBinInt:
        FSDPD_RETURN_IF_ERROR(TakeUnsigned(4, &bits));
        value->integer = static_cast<int32_t>(bits);
        return absl::OkStatus();
      case kBinInt1:
      case kBinInt2:
        FSDPD_RETURN_IF_ERROR(TakeUnsigned(opcode == kBinInt1 ? 1 : 2, &bits));
        value->integer = static_cast<int64_t>(bits);
        return absl::OkStatus();
      case kBinFloat:
        FSDPD_RETURN_IF_ERROR(TakeUnsigned(8, &bits));
        bits = __builtin_bswap64(bits);
        value->kind = PickleKind::kFloat;
        memcpy(&value->real, &bits, sizeof(bits));
        return absl::OkStatus();
      default:
        return Long(opcode == kLong1 ? 1 : 4, value);
    }
  }

  absl::Status Long(size_t width, PickleValue* value) {
    uint64_t size = 0;
    FSDPD_RETURN_IF_ERROR(TakeUnsigned(width, &size));
    absl::string_view digits;
    FSDPD_RETURN_IF_ERROR(Take(size, &digits));
    if (size > 8) {
      value->kind = PickleKind::kBigInt;
      value->text = digits;
      return absl::OkStatus();
    }
    uint64_t bits = !digits.empty() && (digits.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    memcpy(&bits, digits.data(), size);
    value->integer = static_cast<int64_t>(bits);
    return absl::OkStatus();
  }

  absl::Status Text(PickleKind kind, size_t width) {
    uint64_t size = 0;
    FSDPD_RETURN_IF_ERROR(TakeUnsigned(width, &size));
    absl::string_view text;
    FSDPD_RETURN_IF_ERROR(Take(size, &text));
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(kind));
    value->text = text;
    return absl::OkStatus();
  }

  absl::Status Object(uint8_t opcode) {
    switch (opcode) {
      case kGlobal: {
        FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(PickleKind::kClass));
        FSDPD_RETURN_IF_ERROR(TakeLine(&value->text));
        return TakeLine(&value->name);
      }
      case kStackGlobal: {
        FSDPD_RETURN_IF_ERROR(Need(2));
        const PickleValue* name = Pop();
        const PickleValue* module = Pop();
        if (name->kind != PickleKind::kString || module->kind != PickleKind::kString) {
          return Bad("class name is not a string");
        }
        FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(PickleKind::kClass));
        value->text = module->text;
        value->name = name->text;
        return absl::OkStatus();
      }
      case kBinPersid: {
        FSDPD_RETURN_IF_ERROR(Need(1));
        const PickleValue* id = Pop();
        FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(PickleKind::kOutside));
        return Add(value, id);
      }
      case kBuild: {
        FSDPD_RETURN_IF_ERROR(Need(2));
        const PickleValue* state = Pop();
        PickleValue* object = stack_.back();
        if (object->kind != PickleKind::kObject) return Bad("BUILD of a value that is not an object");
        if (object->state() != nullptr) return Bad("second BUILD of one object");
        FSDPD_RETURN_IF_ERROR(Mutable(object));
        FSDPD_RETURN_IF_ERROR(Add(object, state));
        object->items[kStateItem] = state;
        object->items.pop_back();
        return absl::OkStatus();
      }
      default:
        return NewObject(opcode);
    }
  }

  absl::Status NewObject(uint8_t opcode) {
    FSDPD_RETURN_IF_ERROR(Need(opcode == kNewObjEx ? 3 : 2));
    if (opcode == kNewObjEx) {
      const PickleValue* named = Pop();
      if (named->kind != PickleKind::kDict || !named->items.empty())
        return Bad("keyword arguments are not supported");
    }
    const PickleValue* arguments = Pop();
    const PickleValue* of = Pop();
    if (of->kind != PickleKind::kClass) return Bad("the class of an object is not a name");
    if (arguments->kind != PickleKind::kTuple) return Bad("the arguments of an object are not a tuple");
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(PickleKind::kObject));
    FSDPD_RETURN_IF_ERROR(Add(value, of));
    FSDPD_RETURN_IF_ERROR(Add(value, arguments));
    value->items.push_back(nullptr);
    return absl::OkStatus();
  }

  absl::Status Container(uint8_t opcode) {
    switch (opcode) {
      case kEmptyList:
        return Push(PickleKind::kList).status();
      case kEmptyTuple:
        return Push(PickleKind::kTuple).status();
      case kEmptyDict:
        return Push(PickleKind::kDict).status();
      case kEmptySet:
        return Push(PickleKind::kSet).status();
      case kTuple1:
      case kTuple2:
      case kTuple3: {
        const size_t count = opcode - kTuple1 + 1;
        FSDPD_RETURN_IF_ERROR(Need(count));
        const std::vector<PickleValue*> items(stack_.end() - static_cast<int64_t>(count), stack_.end());
        stack_.resize(stack_.size() - count);
        return PushFull(PickleKind::kTuple, items);
      }
      case kTuple:
      case kList:
      case kDict:
      case kFrozenSet: {
        FSDPD_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items, PopToMark());
        if (opcode == kDict && items.size() % 2 != 0) return Bad("key without a value");
        return PushFull(opcode == kTuple  ? PickleKind::kTuple
                        : opcode == kList ? PickleKind::kList
                        : opcode == kDict ? PickleKind::kDict
                                          : PickleKind::kSet,
                        items);
      }
      case kAppend:
      case kSetItem: {
        const size_t count = opcode == kAppend ? 1 : 2;
        FSDPD_RETURN_IF_ERROR(Need(count + 1));
        const std::vector<PickleValue*> items(stack_.end() - static_cast<int64_t>(count), stack_.end());
        stack_.resize(stack_.size() - count);
        return Extend(opcode == kAppend ? PickleKind::kList : PickleKind::kDict, items);
      }
      case kAppends:
      case kAddItems:
      case kSetItems: {
        FSDPD_ASSIGN_OR_RETURN(const std::vector<PickleValue*> items, PopToMark());
        if (opcode == kSetItems && items.size() % 2 != 0) return Bad("key without a value");
        return Extend(opcode == kAppends    ? PickleKind::kList
                      : opcode == kAddItems ? PickleKind::kSet
                                            : PickleKind::kDict,
                      items);
      }
      default:
        return Bad(absl::StrFormat("opcode 0x%02x is not supported", opcode));
    }
  }

  absl::Status PushFull(PickleKind kind, const std::vector<PickleValue*>& items) {
    FSDPD_ASSIGN_OR_RETURN(PickleValue * value, Push(kind));
    return AddAll(value, items);
  }

  // Adds items to the container of this kind on the stack, or to an object that acts like one.
  absl::Status Extend(PickleKind kind, const std::vector<PickleValue*>& items) {
    FSDPD_RETURN_IF_ERROR(Need(1));
    PickleValue* value = stack_.back();
    if (value->kind != kind && value->kind != PickleKind::kObject)
      return Bad("items for a value that is not a container");
    FSDPD_RETURN_IF_ERROR(Mutable(value));
    return AddAll(value, items);
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
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return value.integer != 0 ? "True" : "False";
    case PickleKind::kInt:
      return absl::StrCat(value.integer);
    case PickleKind::kBigInt:
      return "an integer of more than 64 bits";
    case PickleKind::kFloat:
      // The sign of a NaN has no meaning, and differs between machines.
      return std::isnan(value.real) ? "nan" : absl::StrCat(value.real);
    case PickleKind::kString:
      return "a string";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kDict:
      return "a dict";
    case PickleKind::kClass:
      return absl::StrCat("the class ", ClassName(value));
    case PickleKind::kObject:
      return ClassName(value.of());
    case PickleKind::kOutside:
      return "a storage";
  }
  return "?";
}

}  // namespace fsdpd
