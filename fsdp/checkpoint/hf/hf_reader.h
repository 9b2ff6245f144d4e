// Field reader for a Hugging Face config.json: reads fields by key, collects violations, and records which
// fields were read; hf_fields.h judges the rest.
#pragma once

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include <cmath>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/spec_text/located_violation.h"
#include "base/spec_text/yaml_tree.h"

namespace fsdpd {

class HfReader {
 public:
  static constexpr size_t kShown = 80;  // Maximum length of an invalid value in a message.

  explicit HfReader(const TextNode& root) : root_(root) {
    for (const LocatedViolation& twice : DuplicateKeys(root))
      AddViolation(twice.place, twice.violation.rule.c_str(), twice.violation.reason, twice.violation.fix);
  }

  const TextNode& root() const { return root_; }
  size_t violations() const { return violations_.size(); }
  bool has_errors() const { return HasErrors(violations_); }
  LocatedViolations TakeViolations() { return std::move(violations_); }

  void AddViolation(const Place& place, std::string rule, std::string reason, std::string fix = "") {
    violations_.push_back({place,
                           {std::move(rule), ViolationLevel::kError, "model.hf_config", std::move(reason),
                            std::move(fix), "", ""}});
  }
  // Warns of nonzero dropout rates, which are not supported, in one warning. `otherwise` is the family's
  // default.
  void WarnOfDropout(std::initializer_list<const char*> keys, double otherwise) {
    std::string rates;
    const TextNode* first = nullptr;
    for (const char* key : keys) {
      const TextNode* node = Present(key);
      double rate = otherwise;
      if (node != nullptr && !IsFinite(node->text, &rate)) {
        WrongType(root_, *node, "is not a number");
        continue;
      }
      if (rate == 0) continue;
      absl::StrAppend(&rates, rates.empty() ? "" : ", ", key, " ", rate);
      if (first == nullptr) first = node;
    }
    if (rates.empty()) return;
    AddViolation(first == nullptr ? root_.place : first->key_place, "hf_dropout",
                 absl::StrCat("dropout is not supported and is ignored: ", rates),
                 "write 0.0 in the file to confirm");
    violations_.back().violation.level = ViolationLevel::kWarn;
  }
  void Warn(const TextNode& node, std::string rule, std::string reason, std::string fix) {
    AddViolation(node.key_place, std::move(rule), std::move(reason), std::move(fix));
    violations_.back().violation.level = ViolationLevel::kWarn;
  }
  // A rate that must be 0 (the default).
  void WarnOfNoise(absl::string_view key, absl::string_view what) {
    const TextNode* node = Present(key);
    double rate = 0;
    if (node == nullptr || (absl::SimpleAtod(node->text, &rate) && rate == 0)) return;
    NotSupported(*node, absl::StrCat(key, ": ", what), "write 0.0 to disable it");
  }
  void NotSupported(const TextNode& node, absl::string_view what, std::string fix = "") {
    AddViolation(&node == &root_ ? node.place : node.key_place, "hf_not_supported",
                 absl::StrCat(what, " is not supported"), std::move(fix));
  }

  // Null if absent.
  const TextNode* Find(const TextNode& parent, absl::string_view key) {
    read_.insert(PathOf(parent, key));
    return parent.kind == TextNode::Kind::kMap ? parent.Find(key) : nullptr;
  }
  const TextNode* Find(absl::string_view key) { return Find(root_, key); }
  // Null if absent or null, which are equivalent except for mistral's sliding_window.
  const TextNode* Present(const TextNode& parent, absl::string_view key) {
    const TextNode* node = Find(parent, key);
    return node == nullptr || node->kind == TextNode::Kind::kNull ? nullptr : node;
  }
  const TextNode* Present(absl::string_view key) { return Present(root_, key); }
  // Marks fields that have no effect on this model, whatever their values.
  void Skip(std::initializer_list<const char*> keys) { read_.insert(keys.begin(), keys.end()); }
  bool HasRead(const TextNode& parent, absl::string_view key) const {
    return read_.count(PathOf(parent, key)) > 0;
  }

  // A positive integer; `otherwise` 0: required.
  int64_t Integer(const TextNode& parent, absl::string_view key, int64_t otherwise = 0) {
    return Positive<int64_t>(parent, key, otherwise, 0, "is not a positive integer",
                             absl::SimpleAtoi<int64_t>);
  }
  int64_t Integer(absl::string_view key, int64_t otherwise = 0) { return Integer(root_, key, otherwise); }

  // A positive number; `otherwise` 0: required.
  double Number(const TextNode& parent, absl::string_view key, double otherwise = 0) {
    const double instead = otherwise == 0 ? 1 : otherwise;
    return Positive<double>(parent, key, otherwise, instead, "is not a positive number", IsFinite);
  }

  // A nonnegative number; nullopt after a violation.
  std::optional<double> Weight(absl::string_view key, double otherwise) {
    const TextNode* node = Present(key);
    double value = 0;
    if (node == nullptr) return otherwise;
    if (IsPlain(*node) && IsFinite(node->text, &value) && value >= 0) return value;
    WrongType(root_, *node, "is not a number of at least 0");
    return std::nullopt;
  }

  bool Flag(absl::string_view key, bool otherwise = false) {
    const TextNode* node = Present(key);
    if (node == nullptr) return otherwise;
    if (!IsPlain(*node) || (node->text != "true" && node->text != "false")) {
      WrongType(root_, *node, "is not true or false");
      return otherwise;
    }
    return node->text == "true";
  }

  // A name; `otherwise` if absent.
  std::string Text(const TextNode& parent, absl::string_view key, absl::string_view otherwise) {
    const TextNode* node = Present(parent, key);
    if (node == nullptr) return std::string(otherwise);
    if (node->kind == TextNode::Kind::kScalar) return node->text;
    WrongType(parent, *node, "is not a string");
    return std::string(otherwise);
  }

  // The field must be absent or have this value.
  void Only(absl::string_view key, bool value, absl::string_view what) {
    if (Flag(key, value) != value)
      NotSupported(*Find(key), absl::StrCat(key, value ? " false: " : " true: ", what));
  }

  void WrongType(const TextNode& parent, const TextNode& node, absl::string_view what) {
    const std::string value = node.kind == TextNode::Kind::kScalar
                                  ? absl::StrCat("'", node.text.substr(0, kShown), "'")
                                  : absl::StrCat("(", NameOf(node.kind), ")");
    AddViolation(node.place, "wrong_type", absl::StrCat(PathOf(parent, node.key), " ", value, " ", what));
  }

 private:
  // JSON numbers and booleans are not quoted.
  static bool IsPlain(const TextNode& node) { return node.kind == TextNode::Kind::kScalar && !node.quoted; }

  std::string PathOf(const TextNode& parent, absl::string_view key) const {
    return &parent == &root_ ? std::string(key) : absl::StrCat(parent.key, ".", key);
  }

  static bool IsFinite(absl::string_view text, double* value) {
    return absl::SimpleAtod(text, value) && std::isfinite(*value);
  }

  // `otherwise`: if absent; 0: required. `instead`: after a violation.
  template <typename T, typename Parse>
  T Positive(const TextNode& parent, absl::string_view key, T otherwise, T instead, const char* what,
             Parse parse) {
    const TextNode* node = Present(parent, key);
    T value = 0;
    if (node == nullptr && otherwise == 0)
      AddViolation(parent.place, "hf_no_config", absl::StrCat("has no ", PathOf(parent, key)));
    if (node == nullptr) return otherwise;
    if (IsPlain(*node) && parse(node->text, &value) && value > 0) return value;
    WrongType(parent, *node, what);
    return instead;
  }

  const TextNode& root_;
  std::set<std::string> read_;  // Paths of keys: "rope_scaling.factor".
  LocatedViolations violations_;
};

}  // namespace fsdpd
