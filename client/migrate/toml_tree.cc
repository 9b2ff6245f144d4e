#include "client/migrate/toml_tree.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <utility>

namespace fsdpd {
namespace {

bool IsBareWord(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("_-.", c);
  });
}

// True for "[name]" and "[[name]]".
bool IsSection(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, "[") || !absl::ConsumeSuffix(&line, "]")) return false;
  if (absl::ConsumePrefix(&line, "[")) absl::ConsumeSuffix(&line, "]");
  return IsBareWord(absl::StripAsciiWhitespace(line));
}

bool IsAssignment(absl::string_view line) {
  const size_t equals = line.find('=');
  return equals != absl::string_view::npos && IsBareWord(absl::StripAsciiWhitespace(line.substr(0, equals)));
}

Place PlaceOf(const std::string& file, const toml::source_region& source) {
  return {file, static_cast<int>(source.begin.line), static_cast<int>(source.begin.column)};
}

TextNode TreeOf(const toml::node& node, const std::string& file) {
  TextNode tree;
  tree.place = PlaceOf(file, node.source());
  if (const toml::table* table = node.as_table()) {
    tree.kind = TextNode::Kind::kMap;
    for (const auto& [key, value] : *table) {
      tree.children.push_back(TreeOf(value, file));
      tree.children.back().key = std::string(key.str());
      tree.children.back().key_place = PlaceOf(file, key.source());
    }
  } else if (const toml::array* array = node.as_array()) {
    tree.kind = TextNode::Kind::kSequence;
    for (const toml::node& value : *array) tree.children.push_back(TreeOf(value, file));
  } else {
    tree.kind = TextNode::Kind::kScalar;
    tree.quoted = node.is_string();
    if (const auto* text = node.as_string()) tree.text = text->get();
    if (const auto* number = node.as_integer()) tree.text = absl::StrCat(number->get());
    if (const auto* number = node.as_floating_point()) tree.text = absl::StrFormat("%.15g", number->get());
    if (const auto* flag = node.as_boolean()) tree.text = flag->get() ? "true" : "false";
  }
  return tree;
}

}  // namespace

int FindTomlSection(absl::string_view text) {
  int section = 0, number = 0;
  bool assigns = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (section == 0 && IsSection(line)) section = number;
    if (section == 0 && !line.empty() && !IsAssignment(line)) return 0;
    assigns |= section > 0 && IsAssignment(line);
  }
  return assigns ? section : 0;
}

LocatedViolations ParseToml(absl::string_view text, const std::string& file, TextNode* root) {
  const toml::parse_result result = toml::parse(std::string_view(text.data(), text.size()));
  if (result) {
    *root = TreeOf(result.table(), file);
    return {};
  }
  const toml::parse_error& error = result.error();
  return {{PlaceOf(file, error.source()),
           {"syntax", ViolationLevel::kError, "", std::string(error.description()), "", "", ""}}};
}

}  // namespace fsdpd
