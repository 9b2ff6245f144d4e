#include "client/spec/spec_text.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/spec_text/enum_name.h"
#include "base/spec_text/renamed_fields.h"
#include "base/spec_text/yaml_tree.h"
#include "base/text.h"
#include "fsdp/plan/rules/field_values.h"

namespace fsdpd {
namespace {

// Names of fields in other programs: PEFT and bitsandbytes, then transformers, TRL and Axolotl.
struct ForeignName {
  const char* message;  // Empty: in any message, and `ours` is a path from the top.
  const char* theirs;
  const char* ours;
};
constexpr ForeignName kForeignNames[] = {
    {"Lora", "r", "rank"},
    {"Lora", "lora_alpha", "alpha"},
    {"Lora", "target_modules", "targets"},
    {"Lora", "use_rslora", "rank_stabilized"},
    {"Lora", "base_model_name_or_path", "base_model"},
    {"Lora", "load_in_4bit", "base_type"},
    {"Lora", "bnb_4bit_quant_type", "base_type"},
    {"", "num_train_epochs", "train.epochs"},
    {"", "num_epochs", "train.epochs"},
    {"", "max_steps", "train.steps"},
    {"", "per_device_train_batch_size", "train.micro_batch"},
    {"", "micro_batch_size", "train.micro_batch"},
    {"", "gradient_accumulation_steps", "train.global_batch"},
    {"", "train_batch_size", "train.global_batch"},
    {"", "global_batch_size", "train.global_batch"},
    {"", "max_seq_length", "data.sequence_length"},
    {"", "max_length", "data.sequence_length"},
    {"", "sequence_len", "data.sequence_length"},
    {"", "sample_packing", "data.packing"},
    {"", "packing_strategy", "data.packing"},
    {"", "eval_steps", "train.evaluation.every_steps"},
    {"", "save_steps", "checkpoint.every_steps"},
    {"", "save_total_limit", "checkpoint.keep_last"},
    {"", "max_grad_norm", "optimizer.clip_norm"},
    {"", "learning_rate", "optimizer.adamw.lr"},
    {"", "resume_from_checkpoint", "checkpoint.load"},
    {"", "model_name_or_path", "checkpoint.load"},
    {"", "batch_size", "train.global_batch"},
    {"", "lr_scheduler_type", "schedule"},
    {"", "warmup_ratio", "schedule"},
    {"", "gradient_checkpointing", "fsdp.recompute"},
    {"", "bf16", "precision.compute"},
    {"", "fp16", "precision.compute"},
    {"", "lora_r", "train.lora.rank"},
    {"", "lora_alpha", "train.lora.alpha"},
    {"", "load_in_4bit", "train.lora.base_type"},
};

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

constexpr size_t kMaxFaults = 100;

std::string Join(const std::string& path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

const FieldDescriptor* FindField(const Descriptor& type, const std::string& key) {
  if (const FieldDescriptor* field = type.FindFieldByName(key)) return field;
  return type.FindFieldByCamelcaseName(key);
}

// The path of a field with this name below `type`, or "". Terminates because specs have no recursive
// messages.
std::string FindBelow(const Descriptor& type, const std::string& key, bool in_lists) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.name() == key) return key;
    if (field.message_type() == nullptr || (field.is_repeated() && !in_lists)) continue;
    const std::string below = FindBelow(*field.message_type(), key, in_lists);
    if (!below.empty()) return absl::StrCat(field.name(), field.is_repeated() ? "[0]." : ".", below);
  }
  return "";
}

// Names of enum values in other systems. A value without an entry gets the list of supported values instead
// of a similar name: fp4 is not a typo of fp32.
struct Synonym {
  const char* type;
  const char* word;
  const char* suggestion;
};
constexpr Synonym kSynonyms[] = {
    {"Device", "gpu", "cuda"},
    {"Device", "nvidia", "cuda"},
    {"DType", "float32", "fp32"},
    {"DType", "float", "fp32"},
    {"DType", "bfloat16", "bf16"},
    {"DType", "float16", "fp16"},
    {"DType", "half", "fp16"},
    {"Strategy", "ddp", "no_shard"},
    {"Strategy", "zero1", "optim"},
    {"Strategy", "zero2", "optim_grads"},
    {"Strategy", "zero3", "optim_grads_params"},
    {"Strategy", "full_shard", "optim_grads_params"},
    {"TokenType", "uint8", "u8"},
    {"TokenType", "uint16", "u16"},
    {"TokenType", "uint32", "u32"},
};

std::string WithoutDigits(std::string word) {
  word.erase(std::remove_if(word.begin(), word.end(), absl::ascii_isdigit), word.end());
  return word;
}

// The value to suggest for `word`, or "".
std::string SuggestValue(const std::string& type, const std::string& word,
                         const std::vector<std::string>& names) {
  for (const Synonym& synonym : kSynonyms) {
    if (type != synonym.type || word != synonym.word) continue;
    return std::count(names.begin(), names.end(), synonym.suggestion) > 0 ? synonym.suggestion : "";
  }
  const std::string nearest = Nearest(word, names);
  // Values that differ only in digits are different sizes, not typos.
  const bool other_size = nearest != word && WithoutDigits(nearest) == WithoutDigits(word);
  return other_size ? "" : nearest;
}

// Whether the text is a decimal number of YAML 1.2 and JSON: not hexadecimal, NaN or infinity.
bool IsDecimal(absl::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return !text.empty() && (absl::ascii_isdigit(text.front()) || text.front() == '.') &&
         text.find_first_not_of("0123456789.eE+-") == absl::string_view::npos;
}

// PEFT's name of all matrices that can have an adapter.
constexpr char kAllTargets[] = "all-linear", kTargetsField[] = "fsdpd.v1.Lora.targets";

class SpecReader {
 public:
  explicit SpecReader(SpecText* out) : out_(*out) {}

  void AddViolation(const Place& place, std::string rule, const std::string& field, std::string reason,
                    std::string fix) {
    if (out_.violations.size() >= kMaxFaults) return;
    out_.violations.push_back(
        {place, {std::move(rule), ViolationLevel::kError, field, std::move(reason), std::move(fix), "", ""}});
  }

  // Records that the text of this field is not in the spec. For a list element the whole list is unparsed,
  // because the indices of the other elements would be wrong.
  void MarkUnparsed(const std::string& field) {
    if (!field.empty())
      out_.unparsed.push_back(field.substr(0, field.back() == ']' ? field.rfind('[') : field.npos));
  }

  void ReadMessage(const TextNode& node, const std::string& path, Message* message) {
    if (node.kind == TextNode::Kind::kNull && !path.empty())
      return NoValue(node, path, "write {} for the defaults");
    if (node.kind != TextNode::Kind::kMap && node.kind != TextNode::Kind::kNull) {
      return WrongType(node, path, "a group of fields",
                       absl::StrCat("its fields: ", FieldNames(*message->GetDescriptor())));
    }
    std::set<const FieldDescriptor*> seen;
    for (const TextNode& child : node.children) {
      const FieldDescriptor* field = FindField(*message->GetDescriptor(), child.key);
      if (field == nullptr) {
        UnknownField(child, path, *message->GetDescriptor());
        continue;
      }
      const std::string field_path = Join(path, field->name());
      if (!seen.insert(field).second) {
        AddViolation(child.key_place, "duplicate_field", field_path,
                     absl::StrCat(field_path, " is written twice"), "keep one");
        continue;
      }
      if (!CheckOneof(child, field_path, *field, seen)) continue;
      out_.places[field_path] = child.key_place;
      ReadField(child, field_path, message, field);
    }
  }

 private:
  static std::string FieldNames(const Descriptor& type) {
    std::vector<std::string> names;
    for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
    return names.empty() ? "none, write {}" : absl::StrJoin(names, ", ");
  }

  void UnknownField(const TextNode& child, const std::string& path, const Descriptor& type) {
    const std::string field = Join(path, child.key);
    if (const std::string name = CurrentFieldName(type.full_name(), child.key); !name.empty()) {
      out_.unparsed.push_back(Join(path, name));
      return AddViolation(child.key_place, "renamed_field", field, absl::StrCat("renamed to ", name),
                          "use the new name");
    }
    for (const ForeignName& name : kForeignNames) {
      if (child.key != name.theirs) continue;
      if (*name.message == '\0') return UnknownField(child, "", field, name.ours);
      if (type.name() == name.message) return UnknownField(child, path, field, name.ours);
    }
    std::vector<std::string> names, longer;
    for (int i = 0; i < type.field_count(); ++i) {
      names.push_back(type.field(i)->name());
      if (absl::StartsWith(names.back(), child.key + "_")) longer.push_back(names.back());
    }
    // A unique completion in the same group wins over other groups: "vocab" of a model is its vocab_size.
    if (longer.size() == 1) return UnknownField(child, path, field, longer.front());
    std::string suggestion = Nearest(child.key, names);
    if (suggestion.empty()) suggestion = Nearest(absl::AsciiStrToLower(child.key), names);
    if (!suggestion.empty()) return UnknownField(child, path, field, suggestion);
    // Search below the group of the unknown field first, then the whole spec. The latter excludes lists,
    // because some list elements have fields with very common names.
    suggestion = FindBelow(type, child.key, /*in_lists=*/true);
    if (!suggestion.empty()) return UnknownField(child, "", field, Join(path, suggestion));
    suggestion = FindBelow(*v1::JobSpec::descriptor(), child.key, /*in_lists=*/false);
    if (!suggestion.empty()) return UnknownField(child, "", field, suggestion);
    AddViolation(child.key_place, "unknown_field", field, absl::StrCat("unknown field ", field),
                 absl::StrCat("fields here: ", FieldNames(type)));
  }

  // `suggestion` is the name of a field below `path`.
  void UnknownField(const TextNode& child, const std::string& path, const std::string& field,
                    const std::string& suggestion) {
    out_.unparsed.push_back(Join(path, suggestion));
    AddViolation(child.key_place, "unknown_field", field, absl::StrCat("unknown field ", field),
                 absl::StrCat("did you mean ", suggestion, "?"));
  }

  // Returns false if another member of the field's oneof precedes it.
  bool CheckOneof(const TextNode& child, const std::string& path, const FieldDescriptor& field,
                  const std::set<const FieldDescriptor*>& seen) {
    const OneofDescriptor* oneof = field.real_containing_oneof();
    if (oneof == nullptr) return true;
    for (const FieldDescriptor* other : seen) {
      if (other == &field || other->real_containing_oneof() != oneof) continue;
      AddViolation(child.key_place, "two_of_oneof", path,
                   absl::StrCat(field.name(), " is not supported with ", other->name()), "keep one of them");
      return false;
    }
    return true;
  }

  void NoValue(const TextNode& node, const std::string& path, absl::string_view instead) {
    MarkUnparsed(path);
    AddViolation(node.key_place.line > 0 ? node.key_place : node.place, "no_value", path, "has no value",
                 absl::StrCat(instead, ", or remove the field"));
  }

  void WrongType(const TextNode& node, const std::string& path, absl::string_view wanted, std::string fix) {
    MarkUnparsed(path);
    const std::string got = node.kind == TextNode::Kind::kScalar
                                ? absl::StrCat("'", node.text.substr(0, 80), "'")
                                : NameOf(node.kind);
    AddViolation(node.place, "wrong_type", path, absl::StrCat(got, " is not ", wanted), std::move(fix));
  }

  void ReadField(const TextNode& node, const std::string& path, Message* message,
                 const FieldDescriptor* field) {
    if (!field->is_repeated()) return ReadValue(node, path, message, field);
    if (field->message_type() == v1::Variable::descriptor() && node.kind == TextNode::Kind::kMap)
      return ReadVariables(node, path, message, field);
    if (node.kind != TextNode::Kind::kSequence)
      return WrongType(node, path, "a list",
                       node.text == kAllTargets && field->full_name() == kTargetsField
                           ? "leave it out: all matrices that can have an adapter are the default"
                           : "write [...]");
    for (size_t i = 0; i < node.children.size(); ++i) {
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      out_.places[item_path] = node.children[i].place;
      ReadValue(node.children[i], item_path, message, field);
    }
  }

  // Environment variables in the form {NAME: value}. Scalars such as 1 and true are strings here.
  void ReadVariables(const TextNode& node, const std::string& path, Message* message,
                     const FieldDescriptor* field) {
    for (size_t i = 0; i < node.children.size(); ++i) {
      const TextNode& child = node.children[i];
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      out_.places[item_path] = out_.places[item_path + ".name"] = child.key_place;
      out_.places[item_path + ".value"] = child.place;
      v1::Variable variable;
      variable.set_name(child.key);
      message->GetReflection()->AddMessage(message, field)->CopyFrom(variable);
      if (child.kind == TextNode::Kind::kScalar) {
        variable.set_value(child.text);
        const int last = message->GetReflection()->FieldSize(*message, field) - 1;
        message->GetReflection()->MutableRepeatedMessage(message, field, last)->CopyFrom(variable);
      } else if (child.kind == TextNode::Kind::kNull) {
        NoValue(child, item_path + ".value", "write a value, \"\" for an empty one");
      } else {
        WrongType(child, item_path + ".value", "a single value", "write NAME: value");
      }
    }
  }

  // One value: of a singular field, or to append to a repeated one.
  void ReadValue(const TextNode& node, const std::string& path, Message* message,
                 const FieldDescriptor* field) {
    const Reflection& reflection = *message->GetReflection();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return ReadMessage(node, path,
                         field->is_repeated() ? reflection.AddMessage(message, field)
                                              : reflection.MutableMessage(message, field));
    }
    if (node.kind == TextNode::Kind::kNull) return NoValue(node, path, "write a value");
    if (node.kind != TextNode::Kind::kScalar)
      return WrongType(node, path, "a single value", "write a single value");
    const bool may_be_auto =
        field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM || field->has_optional_keyword();
    if (may_be_auto && !field->is_repeated() && node.text == "auto") return;
    ReadScalar(node, path, message, field);
  }

  void ReadScalar(const TextNode& node, const std::string& path, Message* message,
                  const FieldDescriptor* field) {
    const Reflection& reflection = *message->GetReflection();
    const bool add = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        // An empty string may come from a template variable without a value; the default would then be used
        // silently. Only --set may clear a field.
        if (node.text.empty() && !add && field->full_name() != "fsdpd.v1.Variable.value" &&
            !absl::StartsWith(node.place.file, "--set "))
          return NoValue(node, path, "write a value");
        return add ? reflection.AddString(message, field, node.text)
                   : reflection.SetString(message, field, node.text);
      case FieldDescriptor::CPPTYPE_BOOL: {
        if (node.quoted || (node.text != "true" && node.text != "false")) {
          return WrongType(node, path, "true or false", "write true or false");
        }
        return add ? reflection.AddBool(message, field, node.text == "true")
                   : reflection.SetBool(message, field, node.text == "true");
      }
      case FieldDescriptor::CPPTYPE_ENUM: {
        const EnumValueDescriptor* value = ReadEnum(node, path, *field);
        if (value == nullptr) return;
        return add ? reflection.AddEnum(message, field, value) : reflection.SetEnum(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        int64_t value = 0;
        if (!ReadInteger(node, path, *field, &value)) return;
        return add ? reflection.AddInt64(message, field, value) : reflection.SetInt64(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double value = 0;
        if (!ReadDouble(node, path, &value)) return;
        return add ? reflection.AddDouble(message, field, value)
                   : reflection.SetDouble(message, field, value);
      }
      default:
        FSDPD_CHECK(!"job.proto uses a type that spec_text cannot read yet");
    }
  }

  const EnumValueDescriptor* ReadEnum(const TextNode& node, const std::string& path,
                                      const FieldDescriptor& field) {
    for (int i = 0; i < field.enum_type()->value_count(); ++i) {
      const EnumValueDescriptor& value = *field.enum_type()->value(i);
      if (value.number() == 0) continue;
      if (node.text == ShortEnumName(value) || node.text == value.name()) return &value;
    }
    const std::vector<std::string> names = ValuesOf(path, *field.enum_type());
    const std::string suggestion =
        SuggestValue(field.enum_type()->name(), absl::AsciiStrToLower(node.text), names);
    MarkUnparsed(path);
    AddViolation(node.place, "unknown_value", path,
                 absl::StrCat("'", node.text.substr(0, 80), "' is not a value of ", path),
                 suggestion.empty() ? absl::StrCat("write one of ", absl::StrJoin(names, ", "))
                                    : absl::StrCat("did you mean ", suggestion, "?"));
    return nullptr;
  }

  bool ReadInteger(const TextNode& node, const std::string& path, const FieldDescriptor& field,
                   int64_t* value) {
    if (IsDecimal(node.text) && absl::SimpleAtoi(node.text, value)) return true;
    double number = 0;
    if (IsDecimal(node.text) && absl::SimpleAtod(node.text, &number)) {
      // 1e4 and 2.0 are integers. Above 2^53 a double does not represent every integer exactly.
      if (std::abs(number) > 9007199254740992.0) {
        OutOfRange(node, path, "an integer of at most 18 digits");
        return false;
      }
      *value = static_cast<int64_t>(number);
      if (static_cast<double>(*value) == number) return true;
    }
    if (absl::EndsWith(field.name(), "_bytes")) {
      const absl::StatusOr<int64_t> bytes = ParseBytes(node.text);
      if (bytes.ok()) *value = *bytes;
      if (!bytes.ok()) WrongType(node, path, "a size", "write bytes, or a number with KiB, MiB, GiB");
      return bytes.ok();
    }
    WrongType(node, path, "an integer", "write digits, for example 100");
    return false;
  }

  bool ReadDouble(const TextNode& node, const std::string& path, double* value) {
    if (!IsDecimal(node.text) || !absl::SimpleAtod(node.text, value)) {
      WrongType(node, path, "a number", "write a number, for example 0.1 or 1e-3");
      return false;
    }
    if (std::isfinite(*value)) return true;
    OutOfRange(node, path, "a number of at most 308 digits");
    return false;
  }

  void OutOfRange(const TextNode& node, const std::string& path, const char* instead) {
    MarkUnparsed(path);
    AddViolation(node.place, "out_of_range", path, absl::StrCat(node.text.substr(0, 80), " does not fit"),
                 absl::StrCat("write ", instead));
  }

  SpecText& out_;
};

// Finds or creates the child of one step of a --set path; null if the path does not match the tree. A new
// node is located at `place`, because it has no line in the file.
TextNode* Step(TextNode* node, const std::string& name, int index, const Place& place) {
  if (node->kind == TextNode::Kind::kNull) node->kind = TextNode::Kind::kMap;
  if (node->kind != TextNode::Kind::kMap) return nullptr;
  TextNode* child = const_cast<TextNode*>(node->Find(name));
  if (child == nullptr) {
    node->children.emplace_back();
    child = &node->children.back();
    child->key = name;
    child->place = child->key_place = place;
  }
  if (index < 0) return child;
  if (child->kind == TextNode::Kind::kNull) child->kind = TextNode::Kind::kSequence;
  if (child->kind != TextNode::Kind::kSequence || index > static_cast<int>(child->children.size()))
    return nullptr;
  if (index == static_cast<int>(child->children.size())) {
    child->children.emplace_back();
    child->children.back().place = place;
  }
  return &child->children[index];
}

// "tokens[1]" -> "tokens", 1; "steps" -> "steps", -1.
bool SplitStep(absl::string_view step, std::string* name, int* index) {
  *index = -1;
  const size_t bracket = step.find('[');
  *name = std::string(step.substr(0, bracket));
  if (name->empty()) return false;
  if (bracket == absl::string_view::npos) return true;
  const absl::string_view digits = step.substr(bracket + 1, step.size() - bracket - 2);
  return step.back() == ']' && absl::SimpleAtoi(digits, index) && *index >= 0;
}

// Locates all nodes of the subtree at the command line.
void SetPlaces(TextNode* node, const Place& place) {
  node->place = node->key_place = place;
  for (TextNode& child : node->children) SetPlaces(&child, place);
}

void ApplySet(const std::string& set, TextNode* root, SpecReader* reader) {
  const Place place{absl::StrCat("--set ", set), 1, 1};
  const size_t equals = set.find('=');
  const std::string path = set.substr(0, equals);
  const auto bad = [&](const std::string& reason) {
    if (!path.empty()) reader->MarkUnparsed(path);
    reader->AddViolation(place, "bad_set", path, reason, "write path=value, for example train.steps=20");
  };
  if (equals == std::string::npos || equals == 0) return bad("is not path=value");
  TextNode value;
  const LocatedViolations violations =
      ParseYaml(absl::string_view(set).substr(equals + 1), place.file, &value);
  if (!violations.empty()) return bad(violations.front().violation.reason);
  if (equals + 1 == set.size()) value.kind = TextNode::Kind::kScalar;
  TextNode* node = root;
  for (const absl::string_view step : absl::StrSplit(path, '.')) {
    std::string name;
    int index = -1;
    if (!SplitStep(step, &name, &index)) return bad("is not a field path");
    node = Step(node, name, index, place);
    if (node == nullptr) return bad("does not match the structure of the file");
  }
  value.key = node->key;
  *node = std::move(value);
  SetPlaces(node, place);
}

}  // namespace

SpecText ParseSpec(absl::string_view text, const std::string& file, const std::vector<std::string>& sets) {
  SpecText out;
  out.places[""] = {file, 1, 1};
  TextNode root;
  out.violations = ParseYaml(text, file, &root);
  if (!out.violations.empty()) return out;
  SpecReader reader(&out);
  if (root.kind == TextNode::Kind::kNull && sets.empty()) {
    reader.AddViolation(root.place, "no_value", "", "the spec is empty",
                        "write at least name, model, data and train.steps");
    return out;
  }
  for (const std::string& set : sets) ApplySet(set, &root, &reader);
  out.is_tree = root.kind == TextNode::Kind::kMap;
  reader.ReadMessage(root, "", &out.spec);
  return out;
}

}  // namespace fsdpd
