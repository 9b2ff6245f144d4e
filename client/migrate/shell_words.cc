#include "client/migrate/shell_words.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "client/migrate/conversion_rules.h"

namespace fsdpd {
namespace {

bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '_'; }

size_t EndOfName(absl::string_view text, size_t begin) {
  while (begin < text.size() && IsNameChar(text[begin])) ++begin;
  return begin;
}

// Variables and arrays that the text has assigned so far, in the order of execution.
class Assignments {
 public:
  // Records the assignment in a word: NAME=value, or NAME= before "(", which starts an array.
  void Read(const ShellWord& word) {
    if (word.text == "(" && !empty_.empty()) {
      arrays_.insert(empty_);
      values_.erase(empty_);
    }
    empty_.clear();
    const size_t equals = word.text.find('=');
    if (equals == std::string::npos) return;
    absl::string_view name = absl::string_view(word.text).substr(0, equals);
    const bool adds = absl::ConsumeSuffix(&name, "+");
    if (name.empty() || !std::all_of(name.begin(), name.end(), IsNameChar)) return;
    const std::string value = word.text.substr(equals + 1);
    values_.erase(std::string(name));
    if (!word.open && !adds) values_[std::string(name)] = value;
    if (value.empty()) empty_ = std::string(name);
  }

  // True if the word is exactly "${ARGS[@]}" and the array's words are in the text.
  bool HasArray(const ShellWord& word) const {
    absl::string_view name = word.text;
    return absl::ConsumePrefix(&name, "${") &&
           (absl::ConsumeSuffix(&name, "[@]}") || absl::ConsumeSuffix(&name, "[*]}")) &&
           arrays_.count(std::string(name)) > 0;
  }

  // Returns the text with its variables expanded, or nullopt if one is unknown or the expansion budget is
  // used up.
  std::optional<std::string> Expand(const ShellWord& word) {
    const std::string& text = word.text;
    // A dollar sign in single quotes is not a variable, and the quotes are already removed from `text`.
    if (std::count(text.begin(), text.end(), '$') != static_cast<std::ptrdiff_t>(word.unknown.size())) {
      return std::nullopt;
    }
    std::string out;
    for (size_t at = 0; at < text.size();) {
      if (text[at] != '$') {
        out += text[at++];
        continue;
      }
      const bool braces = at + 1 < text.size() && text[at + 1] == '{';
      const size_t begin = at + (braces ? 2 : 1), end = EndOfName(text, begin);
      const size_t closed = braces ? text.find('}', end) : end;
      if (closed == std::string::npos) return std::nullopt;
      const auto found = values_.find(text.substr(begin, end - begin));
      std::string value = found == values_.end() ? "" : found->second;
      // ${NAME:-default}: the environment may set NAME, but the text does not, so use the default.
      if (const std::string rest = text.substr(end, closed - end); !rest.empty()) {
        if (!absl::StartsWith(rest, ":-") || absl::StrContains(rest, '$')) return std::nullopt;
        if (value.empty()) value = rest.substr(2);
      } else if (found == values_.end()) {
        return std::nullopt;
      }
      if (value.size() > expansion_budget_) return std::nullopt;
      expansion_budget_ -= value.size();
      out += value;
      at = closed + (braces ? 1 : 0);
    }
    return out;
  }

 private:
  size_t expansion_budget_ = 1 << 20;  // Bytes. A=$A$A doubles the value with each line.
  std::map<std::string, std::string> values_;
  std::set<std::string> arrays_;
  std::string empty_;  // Name in the last word, if the word was "NAME=".
};

class Splitter {
 public:
  Splitter(absl::string_view text, const std::string& file, bool expand)
      : text_(text), file_(file), expand_(expand) {}

  LocatedViolations Run(std::vector<ShellWord>* words) {
    while (SkipBlank()) {
      ShellWord word;
      word.place = Here();
      word.starts_line = std::exchange(new_line_, false) && depth_ == 0;
      word.ends_command = EndsCommand();
      ReadWord(&word);
      word.open = !word.unknown.empty();
      if (word.text == "(") ++depth_;
      if (word.text == ")") depth_ = std::max(0, depth_ - 1);
      Append(std::move(word), words);
    }
    return std::move(violations_);
  }

 private:
  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek() const { return text_[at_]; }
  Place Here() const { return {file_, line_, column_}; }

  char Take() {
    const char c = text_[at_++];
    ++column_;
    if (c == '\n') {
      ++line_;
      column_ = 1;
    }
    return c;
  }

  // Skips blanks, comments and line ends (with or without a backslash). Returns false at the end of the text.
  bool SkipBlank() {
    while (!AtEnd()) {
      if (absl::ascii_isspace(Peek())) {
        new_line_ |= Take() == '\n';
      } else if (absl::StartsWith(text_.substr(at_), "\\\n")) {
        Take();
        Take();
      } else if (Peek() == '#') {
        while (!AtEnd() && Peek() != '\n') Take();
      } else {
        return true;
      }
    }
    return false;
  }

  // True at the start of a shell operator. A placeholder such as <path> is not an operator.
  bool EndsCommand() const {
    size_t at = at_;
    while (at < text_.size() && absl::ascii_isdigit(text_[at])) ++at;
    if (at == text_.size()) return false;
    if (text_[at] == '>') return true;
    if (text_[at] == '<')
      return text_.substr(at, text_.find_first_of(" \n", at) - at).find('>') == absl::string_view::npos;
    return at == at_ && absl::StrContains("|&;", text_[at]);
  }

  void ReadWord(ShellWord* word) {
    while (!AtEnd() && !absl::ascii_isspace(Peek())) {
      const Place place = Here();
      const bool is_separate = absl::StrContains("();", Peek());  // A separate word: ARGS=(--lr 1), TP=8;
      if (is_separate && !word->text.empty()) return;
      const char c = Take();
      if (is_separate) {
        word->text = c;
        return;
      }
      if (c == '\'' || c == '"') {
        ReadQuoted(c, place, word);
      } else if (c == '\\' && !AtEnd()) {
        const char next = Take();
        if (next == '\n') return;
        word->text += next;
      } else {
        if (c == '$') ReadVariable(place, word);
        word->text += c;
      }
    }
  }

  void ReadQuoted(char quote, const Place& opened, ShellWord* word) {
    while (!AtEnd()) {
      const Place place = Here();
      const char c = Take();
      if (c == quote) return;
      if (quote == '"' && c == '$') ReadVariable(place, word);
      word->text += quote == '"' && c == '\\' && !AtEnd() ? Take() : c;
    }
    violations_.push_back({opened, MakeViolation("open_quote", "")});
  }

  void ReadVariable(const Place& place, ShellWord* word) {
    // $NAME, ${NAME:-default}, $(command)
    const size_t begin = at_ + (!AtEnd() && Peek() == '{' ? 1 : 0), end = EndOfName(text_, begin);
    const absl::string_view name = text_.substr(begin, end - begin), rest = text_.substr(end);
    word->spreads |= absl::StartsWith(rest, "[@]") || absl::StartsWith(rest, "[*]");
    word->spreads |= name.empty() && (absl::StartsWith(rest, "@") || absl::StartsWith(rest, "*"));
    const std::string reason = name.empty() ? "the shell expands this to a value that is not in this text"
                                            : absl::StrCat("the value of $", name, " is not in this text");
    word->unknown.push_back({place, MakeViolation(kShellVariable, "", {reason})});
  }

  void Append(ShellWord word, std::vector<ShellWord>* words) {
    const bool is_variable = expand_ && absl::StartsWith(word.text, "$");
    if (expand_ && word.open) {
      if (assigned_.HasArray(word)) return;
      if (const auto text = assigned_.Expand(word); text.has_value()) {
        word.unknown.clear();
        word.open = false;
        word.text = *text;
      }
    }
    assigned_.Read(word);
    std::vector<ShellWord> several;
    // The shell splits the value of an unquoted variable into words, so a value with blanks has several.
    if (is_variable && !word.open && absl::StrContains(word.text, ' ') &&
        SplitShellWords(word.text, file_, &several).empty()) {
      for (ShellWord& each : several) words->push_back({std::move(each.text), word.place});
      return;
    }
    violations_.insert(violations_.end(), word.unknown.begin(), word.unknown.end());
    words->push_back(std::move(word));
  }

  const absl::string_view text_;
  const std::string file_;
  const bool expand_;
  Assignments assigned_;
  size_t at_ = 0;
  int line_ = 1;
  int column_ = 1;
  bool new_line_ = false;  // A line ended after the last word.
  int depth_ = 0;          // Nesting depth of parentheses.
  LocatedViolations violations_;
};

}  // namespace

LocatedViolations SplitShellWords(absl::string_view text, const std::string& file,
                                  std::vector<ShellWord>* words, bool expand) {
  return Splitter(text, file, expand).Run(words);
}

}  // namespace fsdpd
