#include "client/commands/profile_file.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <set>
#include <sstream>

#include "base/spec_text/yaml_tree.h"
#include "base/text.h"
#include "client/spec/spec_file.h"

namespace fsdpd {
namespace {

class ProfileReader {
 public:
  explicit ProfileReader(const TextNode& root) : root_(root) {}

  ProfileText Read(const std::string& file) {
    result_.profile.name = file;
    if (root_.kind != TextNode::Kind::kMap) {
      AddViolation(root_.place, "", "profile_no_map", absl::StrCat("is ", NameOf(root_.kind)),
                   "write one `key: number` for each of a profile's keys");
      return std::move(result_);
    }
    if (const TextNode* base = root_.Find("base"); base != nullptr) ReadBase(*base);
    for (const TextNode& node : root_.children) ReadKey(node);
    const LocatedViolations twice = DuplicateKeys(root_);
    result_.violations.insert(result_.violations.end(), twice.begin(), twice.end());
    if (!result_.violations.empty()) return std::move(result_);
    for (const Violation& fault : CheckProfile(result_.profile)) {
      const auto place = places_.find(fault.field);
      const bool written = place != places_.end();
      LocatedViolation located{written ? place->second : root_.place, fault};
      if (!written) located.violation.reason = "is missing";
      result_.violations.push_back(std::move(located));
    }
    return std::move(result_);
  }

 private:
  void AddViolation(const Place& place, const std::string& key, const char* rule, std::string reason,
                    std::string fix) {
    result_.violations.push_back(
        {place, {rule, ViolationLevel::kError, key, std::move(reason), std::move(fix), "", ""}});
  }

  void ReadBase(const TextNode& node) {
    const DeviceProfile* base = FindProfile(node.text);
    if (base == nullptr) {
      AddViolation(node.place, "base", "profile_unknown", absl::StrCat("unknown profile '", node.text, "'"),
                   absl::StrCat("name one of ", absl::StrJoin(ProfileNames(), ", ")));
      return;
    }
    const std::string file = result_.profile.name;
    result_.profile = *base;
    result_.profile.name = file;
  }

  void ReadKey(const TextNode& node) {
    places_.emplace(node.key, node.place);
    if (node.key == "base") return;
    if (node.key == "name") {
      result_.profile.name = node.text;
      return;
    }
    std::vector<std::string> keys = {"base", "name"};
    for (const ProfileField& field : ProfileFields()) {
      if (node.key == field.key) return ReadNumber(node, field);
      keys.push_back(field.key);
    }
    const std::string nearest = Nearest(node.key, keys);
    AddViolation(node.key_place, node.key, "unknown_field", absl::StrCat("unknown key ", node.key),
                 nearest.empty() ? "" : absl::StrCat("did you mean ", nearest, "?"));
  }

  void ReadNumber(const TextNode& node, const ProfileField& field) {
    double value = 0;
    if (node.kind != TextNode::Kind::kScalar || !absl::SimpleAtod(node.text, &value)) {
      const bool scalar = node.kind == TextNode::Kind::kScalar;
      return AddViolation(
          node.place, node.key, "wrong_type",
          absl::StrCat("is ", scalar ? absl::StrCat("'", node.text.substr(0, 80), "'") : NameOf(node.kind)),
          "write a number, such as 700e12");
    }
    result_.profile.*field.value = value;
  }

  const TextNode& root_;
  std::map<std::string, Place> places_;
  ProfileText result_;
};

}  // namespace

ProfileText ParseProfile(absl::string_view text, const std::string& file) {
  TextNode root;
  LocatedViolations violations = ParseYaml(text, file, &root);
  if (!violations.empty()) return {{}, std::move(violations)};
  return ProfileReader(root).Read(file);
}

absl::StatusOr<ProfileText> LoadProfile(const std::string& name_or_path) {
  if (const DeviceProfile* shipped = FindProfile(name_or_path); shipped != nullptr) {
    return ProfileText{*shipped, {}};
  }
  std::istringstream no_input;
  const absl::StatusOr<std::string> text = ReadText(name_or_path, no_input);
  if (text.ok()) return ParseProfile(*text, name_or_path);
  const std::string nearest = Nearest(name_or_path, ProfileNames());
  return absl::NotFoundError(absl::StrCat(
      "--profile: not a built-in profile, and the file cannot be read: ", text.status().message(), "; ",
      nearest.empty() ? "" : absl::StrCat("did you mean ", nearest, "? "), "the built-in profiles are ",
      absl::StrJoin(ProfileNames(), ", ")));
}

}  // namespace fsdpd
