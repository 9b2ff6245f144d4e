#include "base/spec_text/yaml_tree.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "base/limits.h"

namespace fsdpd {
namespace {

LocatedViolation MakeViolation(Place place, std::string rule, std::string reason, std::string fix) {
  return {std::move(place),
          {std::move(rule), ViolationLevel::kError, "", std::move(reason), std::move(fix), "", ""}};
}

// Exception that leaves yaml-cpp from within an event.
struct Refused {
  LocatedViolation located;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& file, const std::string& text, TextNode* root)
      : file_(file), text_(text), root_(root) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1)
      Refuse(mark, "several_documents", "a second document starts here", "write one spec per file");
  }
  void OnDocumentEnd() override {}
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Refuse(mark, "alias", "aliases (*name) are not allowed", "write the value out");
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Add(NewNode(mark, TextNode::Kind::kNull, "?", anchor));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    TextNode node = NewNode(mark, TextNode::Kind::kScalar, tag, anchor);
    node.text = value;
    node.quoted = tag == "!";
    if (node.quoted) CheckQuoteIsClosed(mark);
    Add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, NewNode(mark, TextNode::Kind::kSequence, tag, anchor));
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, NewNode(mark, TextNode::Kind::kMap, tag, anchor));
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Frame {
    TextNode node;
    bool has_key = false;  // In a map: `key` waits for its value.
    std::string key;
    Place key_place;
  };

  Place At(const YAML::Mark& mark) const {
    return mark.is_null() ? Place{file_, 1, 1} : Place{file_, mark.line + 1, mark.column + 1};
  }

  [[noreturn]] void Refuse(const YAML::Mark& mark, std::string rule, std::string reason,
                           std::string fix) const {
    throw Refused{MakeViolation(At(mark), std::move(rule), std::move(reason), std::move(fix))};
  }

  // yaml-cpp accepts the end of the text as the end of a quote, so a truncated file would pass.
  void CheckQuoteIsClosed(const YAML::Mark& mark) const {
    const auto start = static_cast<size_t>(mark.pos);
    if (start >= text_.size() || (text_[start] != '"' && text_[start] != '\'')) return;
    const char quote = text_[start];
    for (size_t i = start + 1; i < text_.size(); ++i) {
      const bool doubled =
          quote == '\'' && i + 1 < text_.size() && text_[i] == quote && text_[i + 1] == quote;
      const bool escape = quote == '"' && text_[i] == '\\';
      if (doubled || escape) {
        ++i;
      } else if (text_[i] == quote) {
        return;
      }
    }
    Refuse(mark, "syntax", "unterminated quote", "");
  }

  TextNode NewNode(const YAML::Mark& mark, TextNode::Kind kind, const std::string& tag,
                   YAML::anchor_t anchor) {
    if (anchor != 0) Refuse(mark, "alias", "anchors (&name) are not allowed", "write the value out");
    if (!tag.empty() && tag != "?" && tag != "!")
      Refuse(mark, "tag", "tags (!name) are not allowed",
             "leave it out, or quote a value that begins with !");
    if (++nodes_ > kMaxYamlNodes) {
      Refuse(mark, "too_large", absl::StrCat("more than ", kMaxYamlNodes, " values"), "shorten the file");
    }
    TextNode node;
    node.kind = kind;
    node.place = At(mark);
    return node;
  }

  void Open(const YAML::Mark& mark, TextNode node) {
    if (!open_.empty() && open_.back().node.kind == TextNode::Kind::kMap && !open_.back().has_key) {
      Refuse(mark, "bad_key", absl::StrCat("a field's name is ", NameOf(node.kind)), "write a plain name");
    }
    if (open_.size() >= kMaxYamlDepth) {
      Refuse(mark, "too_deep", absl::StrCat("nested deeper than ", kMaxYamlDepth, " levels"), "");
    }
    open_.push_back({std::move(node), false, "", {}});
  }

  void Close() {
    TextNode node = std::move(open_.back().node);
    open_.pop_back();
    Add(std::move(node));
  }

  void Add(TextNode node) {
    if (open_.empty()) {
      *root_ = std::move(node);
      return;
    }
    Frame& frame = open_.back();
    if (frame.node.kind == TextNode::Kind::kMap && !frame.has_key) {
      if (node.kind != TextNode::Kind::kScalar) {
        throw Refused{MakeViolation(node.place, "bad_key", "a field has no name", "write name: value")};
      }
      frame.has_key = true;
      frame.key = std::move(node.text);
      frame.key_place = node.place;
      return;
    }
    if (frame.has_key) {
      node.key = std::move(frame.key);
      node.key_place = frame.key_place;
      frame.has_key = false;
    }
    frame.node.children.push_back(std::move(node));
  }

  const std::string& file_;
  const std::string& text_;
  TextNode* const root_;
  std::vector<Frame> open_;
  int documents_ = 0;
  int nodes_ = 0;
};

// Length of the valid UTF-8 sequence at the start of `text`; 0 if invalid. Rejects overlong forms, surrogates
// and code points above U+10FFFF, as in RFC 3629.
size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned lead = byte(0), next = byte(1);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return follows(1) ? 2 : 0;
  if ((lead & 0xF0) == 0xE0) {
    if ((lead == 0xE0 && next < 0xA0) || (lead == 0xED && next > 0x9F)) return 0;
    return follows(1) && follows(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if ((lead == 0xF0 && next < 0x90) || (lead == 0xF4 && next > 0x8F)) return 0;
    return follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

LocatedViolations CheckCharacters(absl::string_view text, const std::string& file) {
  Place place{file, 1, 1};
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t length = Utf8Length(text.substr(i));
    if (length == 0) {
      return {MakeViolation(place, "not_utf8", absl::StrFormat("byte 0x%02x is not UTF-8", c),
                            "save the file as UTF-8")};
    }
    if ((c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F) {
      return {MakeViolation(place, "control_character", absl::StrFormat("control character 0x%02x", c),
                            "use a text file")};
    }
    place.column = c == '\n' ? 1 : place.column + static_cast<int>(length);
    if (c == '\n') ++place.line;
    i += length;
  }
  return {};
}

// Column of the first tab in the indentation of a line; 0 if none. The message of the parser would be about
// what follows.
int TabInIndent(absl::string_view text, int line) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (line > static_cast<int>(lines.size())) return 0;
  const absl::string_view indent = lines[line - 1].substr(0, lines[line - 1].find_first_not_of(" \t"));
  const size_t tab = indent.find('\t');
  return tab == absl::string_view::npos ? 0 : static_cast<int>(tab) + 1;
}

// For a text in brackets, JSON or YAML: a violation if it ends before they are closed. The message of the
// parser would be about the text before the end ("a field's name is a group of fields").
LocatedViolations CutOff(absl::string_view text, const std::string& file) {
  const size_t start = text.find_first_not_of(" \t\r\n");
  if (start == absl::string_view::npos || (text[start] != '{' && text[start] != '[')) return {};
  int open = 0;
  bool quoted = false;
  for (size_t i = start; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      open += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    }
  }
  if (open <= 0) return {};
  const auto lines = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  const size_t last = text.rfind('\n');
  const auto column = static_cast<int>(text.size() - (last == absl::string_view::npos ? 0 : last + 1)) + 1;
  return {MakeViolation({file, lines + 1, column}, "syntax",
                        absl::StrCat("unexpected end of file: ", open,
                                     open == 1 ? " bracket is" : " brackets are", " still open"),
                        "check whether the file is truncated")};
}

void AddKeysWrittenTwice(const TextNode& node, const std::string& path, LocatedViolations* violations) {
  std::set<absl::string_view> seen;
  for (size_t i = 0; i < node.children.size(); ++i) {
    const TextNode& child = node.children[i];
    const bool is_item = node.kind == TextNode::Kind::kSequence;
    const std::string child_path =
        is_item ? absl::StrCat(path, "[", i, "]") : absl::StrCat(path, path.empty() ? "" : ".", child.key);
    if (!is_item && !seen.insert(child.key).second) {
      violations->push_back(MakeViolation(child.key_place, "duplicate_field",
                                          absl::StrCat(child_path, " is written twice"), "keep one"));
      violations->back().violation.field = child_path;
    }
    AddKeysWrittenTwice(child, child_path, violations);
  }
}

}  // namespace

const TextNode* TextNode::Find(absl::string_view child_key) const {
  for (const TextNode& child : children) {
    if (child.key == child_key) return &child;
  }
  return nullptr;
}

const char* NameOf(TextNode::Kind kind) {
  switch (kind) {
    case TextNode::Kind::kNull:
      return "nothing";
    case TextNode::Kind::kScalar:
      return "a single value";
    case TextNode::Kind::kSequence:
      return "a list";
    case TextNode::Kind::kMap:
      return "a group of fields";
  }
  return "";
}

LocatedViolations ParseYaml(absl::string_view text, const std::string& file, TextNode* root) {
  *root = TextNode();
  root->place = {file, 1, 1};
  if (text.size() > kMaxJobSpecBytes) {
    const std::string reason = absl::StrCat("more than ", kMaxJobSpecBytes, " bytes");
    return {MakeViolation({file, 1, 1}, "too_large", reason, "check whether it is the right file")};
  }
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  if (LocatedViolations violations = CheckCharacters(text, file); !violations.empty()) return violations;
  try {
    const std::string bytes(text);
    std::istringstream stream(bytes);
    YAML::Parser parser(stream);
    TreeBuilder builder(file, bytes, root);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refused& refused) {
    const LocatedViolations cut_off = CutOff(text, file);
    return cut_off.empty() ? LocatedViolations{refused.located} : cut_off;
  } catch (const YAML::Exception& e) {
    if (LocatedViolations cut_off = CutOff(text, file); !cut_off.empty()) return cut_off;
    const Place place =
        e.mark.is_null() ? Place{file, 1, 1} : Place{file, e.mark.line + 1, e.mark.column + 1};
    if (const int tab = TabInIndent(text, place.line); tab > 0) {
      return {MakeViolation({file, place.line, tab}, "syntax", "a tab cannot indent in YAML",
                            "indent with spaces")};
    }
    return {MakeViolation(place, "syntax", e.msg, "")};
  }
  return {};
}

LocatedViolations DuplicateKeys(const TextNode& root) {
  LocatedViolations violations;
  AddKeysWrittenTwice(root, "", &violations);
  return violations;
}

}  // namespace fsdpd
