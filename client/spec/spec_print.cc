#include "client/spec/spec_print.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/json_quote.h"
#include "base/spec_text/enum_name.h"

namespace fsdpd {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kSingular = -1;

// Whether the string can be written without quotes: it parses as the same string, and looks like one to a
// reader.
bool IsPlain(const std::string& text) {
  static const char* const kWords[] = {"true", "false", "null", "yes", "no", "on", "off", "auto", "~"};
  if (text.empty() || absl::ascii_isdigit(text[0]) || std::strchr("-.+", text[0]) != nullptr) return false;
  for (const char* word : kWords) {
    if (absl::EqualsIgnoreCase(text, word)) return false;
  }
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(c) || std::strchr("_-./", c) != nullptr; });
}

// YAML 1.1 parsers such as PyYAML read 1e-05 as a string: a float needs a decimal point.
std::string WithPoint(std::string number) {
  const size_t exponent = number.find('e');
  if (exponent != std::string::npos && number.find('.') == std::string::npos) number.insert(exponent, ".0");
  return number;
}

// The shortest decimal that parses to the same value.
std::string Number(double value, bool json) {
  if (std::isnan(value)) return json ? "\"NaN\"" : ".nan";
  if (std::isinf(value))
    return absl::StrCat(json ? "\"" : "", value < 0 ? "-" : "", json ? "Infinity\"" : ".inf");
  for (int digits = 1; digits < 17; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) return WithPoint(text);
  }
  return WithPoint(absl::StrFormat("%.17g", value));
}

struct Form {
  bool json = false;
  bool complete = false;              // Include fields without presence that are zero.
  bool one_line = false;              // JSON only.
  const Message* lists_of = nullptr;  // Prints only the repeated fields of this message.
};

class Printer {
 public:
  explicit Printer(Form form) : form_(form), json_(form.json) {}

  std::string Take() { return std::move(out_); }

  // REQUIRES: `field` is not a message field.
  std::string One(const Message& message, const FieldDescriptor& field, int index) const {
    return Scalar(message, field, index);
  }
  std::string List(const Message& message, const FieldDescriptor& field) {
    JsonField(message, field, 0);
    return Take();
  }

  void YamlMessage(const Message& message, int indent) {
    for (const FieldDescriptor* field : Fields(message)) {
      absl::StrAppend(&out_, std::string(indent, ' '), field->name(), ":");
      YamlField(message, *field, indent);
    }
  }

  void JsonMessage(const Message& message, int indent) {
    const std::vector<const FieldDescriptor*> fields = Fields(message);
    if (fields.empty()) {
      out_ += "{}";
      return;
    }
    const std::string pad = form_.one_line ? "" : absl::StrCat("\n", std::string(indent + 2, ' '));
    const char* separator = "{";
    for (const FieldDescriptor* field : fields) {
      absl::StrAppend(&out_, separator, pad, "\"", field->name(), "\": ");
      JsonField(message, *field, indent + 2);
      separator = form_.one_line ? ", " : ",";
    }
    absl::StrAppend(&out_, form_.one_line ? "" : absl::StrCat("\n", std::string(indent, ' ')), "}");
  }

 private:
  // The fields to print, ordered by number.
  std::vector<const FieldDescriptor*> Fields(const Message& message) const {
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    if (!form_.complete) return fields;
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = message.GetDescriptor()->field(i);
      const bool absent = field->has_presence() || std::count(fields.begin(), fields.end(), field) > 0;
      if (!absent) fields.push_back(field);
    }
    if (&message == form_.lists_of) {
      fields.erase(std::remove_if(fields.begin(), fields.end(),
                                  [](const FieldDescriptor* field) { return !field->is_repeated(); }),
                   fields.end());
    }
    std::sort(fields.begin(), fields.end(),
              [](const FieldDescriptor* a, const FieldDescriptor* b) { return a->number() < b->number(); });
    return fields;
  }

  void YamlField(const Message& message, const FieldDescriptor& field, int indent) {
    const Reflection& reflection = *message.GetReflection();
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      absl::StrAppend(&out_, " ",
                      field.is_repeated() ? Flow(message, field) : Scalar(message, field, kSingular), "\n");
      return;
    }
    if (!field.is_repeated()) return YamlChild(reflection.GetMessage(message, &field), indent + 2);
    out_ += reflection.FieldSize(message, &field) == 0 ? " []\n" : "\n";
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      YamlItem(reflection.GetRepeatedMessage(message, &field, i), indent + 2);
    }
  }

  void YamlChild(const Message& child, int indent) {
    if (Fields(child).empty()) {
      out_ += " {}\n";
      return;
    }
    out_ += "\n";
    YamlMessage(child, indent);
  }

  // "- " replaces the indentation of the first field.
  void YamlItem(const Message& item, int indent) {
    if (Fields(item).empty()) {
      absl::StrAppend(&out_, std::string(indent, ' '), "- {}\n");
      return;
    }
    const size_t start = out_.size();
    YamlMessage(item, indent + 2);
    out_[start + indent] = '-';
  }

  void JsonField(const Message& message, const FieldDescriptor& field, int indent) {
    const Reflection& reflection = *message.GetReflection();
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      out_ += field.is_repeated() ? Flow(message, field) : Scalar(message, field, kSingular);
      return;
    }
    if (!field.is_repeated()) return JsonMessage(reflection.GetMessage(message, &field), indent);
    out_ += "[";
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      if (i > 0) out_ += ", ";
      JsonMessage(reflection.GetRepeatedMessage(message, &field, i), indent);
    }
    out_ += "]";
  }

  std::string Flow(const Message& message, const FieldDescriptor& field) const {
    std::vector<std::string> items;
    for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
      items.push_back(Scalar(message, field, i));
    }
    return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
  }

  std::string Scalar(const Message& m, const FieldDescriptor& field, int i) const {
    const Reflection& r = *m.GetReflection();
    const FieldDescriptor* f = &field;
    const bool one = i == kSingular;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string text = one ? r.GetString(m, f) : r.GetRepeatedString(m, f, i);
        return !json_ && IsPlain(text) ? text : JsonQuoted(text);
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        return (one ? r.GetBool(m, f) : r.GetRepeatedBool(m, f, i)) ? "true" : "false";
      case FieldDescriptor::CPPTYPE_ENUM: {
        const EnumValueDescriptor* value = one ? r.GetEnum(m, f) : r.GetRepeatedEnum(m, f, i);
        // An UNSPECIFIED enum of a spec is `auto`; any other one is `unspecified`.
        const bool of_spec = absl::EndsWith(f->enum_type()->file()->name(), "/job.proto");
        const std::string name = value->number() == 0 && of_spec ? "auto" : ShortEnumName(*value);
        return json_ ? JsonQuoted(name) : name;
      }
      case FieldDescriptor::CPPTYPE_INT64:
        return absl::StrCat(one ? r.GetInt64(m, f) : r.GetRepeatedInt64(m, f, i));
      case FieldDescriptor::CPPTYPE_INT32:
        return absl::StrCat(one ? r.GetInt32(m, f) : r.GetRepeatedInt32(m, f, i));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Number(one ? r.GetDouble(m, f) : r.GetRepeatedDouble(m, f, i), json_);
      default:
        FSDPD_CHECK(!"a proto uses a type that spec_print cannot write yet");
    }
    return "";
  }

  const Form form_;
  const bool json_;
  std::string out_;
};

std::string Yaml(const Message& message, bool complete) {
  Printer printer({/*json=*/false, complete, /*one_line=*/false});
  printer.YamlMessage(message, 0);
  std::string text = printer.Take();
  return text.empty() ? "{}\n" : text;
}

std::string Json(const Message& message, bool complete, bool one_line) {
  Printer printer({/*json=*/true, complete, one_line});
  printer.JsonMessage(message, 0);
  return printer.Take();
}

}  // namespace

std::string ToYaml(const Message& message) { return Yaml(message, /*complete=*/false); }
std::string ToJson(const Message& message) { return Json(message, false, /*one_line=*/false) + "\n"; }
std::string ToYamlData(const Message& message) { return Yaml(message, /*complete=*/true); }
std::string ToJsonData(const Message& message) { return Json(message, true, /*one_line=*/false) + "\n"; }
std::string ToYamlLists(const Message& message) {
  Printer printer({/*json=*/false, /*complete=*/true, /*one_line=*/false, &message});
  printer.YamlMessage(message, 0);
  return printer.Take();
}
std::string ToJsonLists(const Message& message) {
  Printer printer({/*json=*/true, /*complete=*/true, /*one_line=*/false, &message});
  printer.JsonMessage(message, 0);
  return printer.Take() + "\n";
}
std::string ToJsonLine(const Message& message) { return Json(message, true, /*one_line=*/true); }

std::string ScalarText(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    return index == kSingular ? reflection.GetString(message, &field)
                              : reflection.GetRepeatedString(message, &field, index);
  }
  const std::string text =
      Printer({/*json=*/true, /*complete=*/true, /*one_line=*/true}).One(message, field, index);
  return text.size() >= 2 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
}

std::string ListLine(const Message& message, const FieldDescriptor& field) {
  return Printer({/*json=*/true, /*complete=*/true, /*one_line=*/true}).List(message, field);
}

}  // namespace fsdpd
