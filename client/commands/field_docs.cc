#include "client/commands/field_docs.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/spec_text/enum_name.h"
#include "base/spec_text/renamed_fields.h"
#include "base/text.h"
#include "fsdp/plan/rules/field_values.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::SourceLocation;

// FileDescriptorSet of the public API, with comments.
constexpr unsigned char kDescriptors[] = {
#include "client/commands/api_descriptors.inc"
};

// Never destroyed, because descriptors are returned to callers.
const DescriptorPool& Pool() {
  static const auto* const pool = [] {
    google::protobuf::FileDescriptorSet files;
    FSDPD_CHECK(files.ParseFromArray(kDescriptors, sizeof(kDescriptors)));
    auto* made = new DescriptorPool;
    for (const auto& file : files.file()) FSDPD_CHECK(made->BuildFile(file) != nullptr);
    return made;
  }();
  return *pool;
}

// The leading and trailing comments of a descriptor. Lines of a paragraph are joined; a blank or indented
// line starts a new paragraph.
template <typename Described>
std::string CommentOf(const Described& what) {
  SourceLocation place;
  if (!what.GetSourceLocation(&place)) return "";
  std::string text;
  bool fresh = true;
  for (absl::string_view line :
       absl::StrSplit(absl::StrCat(place.leading_comments, place.trailing_comments), '\n')) {
    absl::ConsumePrefix(&line, " ");
    line = absl::StripTrailingAsciiWhitespace(line);
    if (absl::StartsWith(line, "buf:lint")) continue;
    const bool own = line.empty() || absl::StartsWith(line, " ");
    absl::StrAppend(&text, text.empty() ? "" : own || fresh ? "\n" : " ", line);
    fresh = own;
  }
  return std::string(absl::StripAsciiWhitespace(text));
}

std::string TypeOf(const FieldDescriptor& field) {
  const auto one = [&]() -> std::string {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return field.message_type()->name();
      case FieldDescriptor::CPPTYPE_ENUM:
        return "enum";
      case FieldDescriptor::CPPTYPE_STRING:
        return "string";
      case FieldDescriptor::CPPTYPE_BOOL:
        return "boolean";
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return "number";
      default:
        return absl::EndsWith(field.name(), "_bytes") ? "bytes, as 1.5GiB" : "integer";
    }
  };
  return field.is_repeated() ? absl::StrCat("list of ", one()) : one();
}

FieldDoc DocOf(const FieldDescriptor& field) {
  FieldDoc doc{field.name(), TypeOf(field), CommentOf(field)};
  const auto* oneof = field.real_containing_oneof();
  if (oneof != nullptr) {
    std::vector<std::string> others;
    for (int i = 0; i < oneof->field_count(); ++i) {
      if (oneof->field(i) != &field) others.push_back(oneof->field(i)->name());
    }
    absl::StrAppend(&doc.type, ", instead of ", absl::StrJoin(others, ", "));
  }
  return doc;
}

void AddFields(const Descriptor& message, Explained* explained) {
  for (int i = 0; i < message.field_count(); ++i) explained->fields.push_back(DocOf(*message.field(i)));
}

// Terminates because specs have no recursive messages.
void AddPaths(const Descriptor& message, const std::string& parent, std::vector<std::string>* paths) {
  for (int i = 0; i < message.field_count(); ++i) {
    paths->push_back(absl::StrCat(parent, message.field(i)->name()));
    if (const Descriptor* below = message.field(i)->message_type())
      AddPaths(*below, absl::StrCat(paths->back(), "."), paths);
  }
}

// Splits a path into names: "data.tokens[0].path" into data, tokens, path.
std::vector<std::string> NamesOf(const std::string& path) {
  std::vector<std::string> names;
  for (const absl::string_view part : absl::StrSplit(path, '.', absl::SkipEmpty()))
    names.emplace_back(part.substr(0, part.find('[')));
  return names;
}

absl::Status Unknown(const std::string& path, const std::string& so_far, const std::string& name,
                     const Descriptor& message) {
  if (const std::string current = CurrentFieldName(message.full_name(), name); !current.empty())
    return absl::NotFoundError(
        absl::StrCat("unknown field ", path, "; renamed to ", so_far, so_far.empty() ? "" : ".", current));
  std::vector<std::string> known;
  for (int i = 0; i < message.field_count(); ++i) known.push_back(message.field(i)->name());
  const std::string nearest = Nearest(absl::AsciiStrToLower(name), known);
  return absl::NotFoundError(absl::StrCat(
      "unknown field ", path,
      nearest.empty()
          ? absl::StrCat("; ", so_far.empty() ? "a spec" : so_far, " has ", absl::StrJoin(known, ", "))
          : absl::StrCat("; did you mean ", so_far, so_far.empty() ? "" : ".", nearest, "?")));
}

}  // namespace

absl::StatusOr<Explained> ExplainField(const std::string& path) {
  static const auto* const kRoots = new std::map<std::string, const char*>{
      {"spec", "fsdpd.v1.JobSpec"}, {"job", "fsdpd.v1.Job"}, {"node", "fsdpd.v1.Node"}};
  std::vector<std::string> names = NamesOf(path);
  const auto root = names.empty() ? kRoots->end() : kRoots->find(absl::AsciiStrToLower(names[0]));
  const bool named = root != kRoots->end();
  const Descriptor* message = Pool().FindMessageTypeByName(named ? root->second : "fsdpd.v1.JobSpec");
  FSDPD_CHECK(message != nullptr);
  Explained explained;
  explained.field = {named ? root->first : "spec", message->name(), CommentOf(*message)};
  std::string so_far = named && explained.field.name != "spec" ? explained.field.name : "";
  if (named) names.erase(names.begin());
  for (size_t i = 0; i < names.size(); ++i) {
    const FieldDescriptor* field = nullptr;
    if (message != nullptr) {
      field = message->FindFieldByName(names[i]);
      if (field == nullptr) field = message->FindFieldByCamelcaseName(names[i]);
      if (field == nullptr) field = message->FindFieldByName(absl::AsciiStrToLower(names[i]));
      if (field == nullptr) return Unknown(path, so_far, names[i], *message);
    } else {
      return absl::NotFoundError(absl::StrCat("unknown field ", path, "; ", so_far, " has no fields"));
    }
    so_far = so_far.empty() ? field->name() : absl::StrCat(so_far, ".", field->name());
    message = field->message_type();
    explained = Explained();
    explained.field = DocOf(*field);
    explained.field.name = so_far;
    if (message != nullptr) explained.message = CommentOf(*message);
    if (so_far == "model.preset") {
      for (const std::string& name : PresetNames()) explained.values.push_back({name, "", ""});
    }
    const auto* values = field->enum_type();
    const std::vector<std::string> names =
        values == nullptr ? std::vector<std::string>() : ValuesOf(so_far, *values);
    for (int v = 0; values != nullptr && v < values->value_count(); ++v) {
      if (std::count(names.begin(), names.end(), ShortEnumName(*values->value(v))) == 0) continue;
      explained.values.push_back({ShortEnumName(*values->value(v)), "", CommentOf(*values->value(v))});
    }
  }
  if (message != nullptr) AddFields(*message, &explained);
  return explained;
}

std::vector<std::string> PathsTo(const std::string& name) {
  const Descriptor* spec = Pool().FindMessageTypeByName("fsdpd.v1.JobSpec");
  FSDPD_CHECK(spec != nullptr);
  std::vector<std::string> all, found;
  AddPaths(*spec, "", &all);
  const std::string end = absl::StrCat(".", name);
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const std::string& path) {
    return absl::EndsWithIgnoreCase(absl::StrCat(".", path), end);
  });
  return found;
}

std::vector<FieldDoc> ErrorIds() {
  struct {
    const char* name;
    const char* prefix;
    const char* type;
  } const enums[] = {{"fsdpd.v1.Reason", "REASON_", "error id"},
                     {"fsdpd.v1.FailureCause", "FAILURE_CAUSE_", "failure cause"}};
  std::vector<FieldDoc> ids;
  for (const auto& each : enums) {
    const auto* all = Pool().FindEnumTypeByName(each.name);
    FSDPD_CHECK(all != nullptr);
    for (int i = 0; i < all->value_count(); ++i) {
      const auto& value = *all->value(i);
      if (value.number() == 0) continue;
      ids.push_back({std::string(absl::StripPrefix(value.name(), each.prefix)), each.type,
                     absl::StrReplaceAll(CommentOf(value), {{" Fix: ", "\nFix: "}})});
    }
  }
  return ids;
}

}  // namespace fsdpd
