#include "client/migrate/shell_words.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

namespace fsdpd {
namespace {

class Splitter {
 public:
  Splitter(absl::string_view text, const std::string& file) : text_(text), file_(file) {}

  SpecFaults Run(std::vector<ShellWord>* words) {
    while (SkipBlank()) {
      ShellWord word{"", {file_, line_, column_}};
      ReadWord(&word);
      words->push_back(std::move(word));
    }
    return std::move(faults_);
  }

 private:
  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek() const { return text_[at_]; }

  char Take() {
    const char c = text_[at_++];
    ++column_;
    if (c == '\n') {
      ++line_;
      column_ = 1;
    }
    return c;
  }

  // Blanks, comments and line ends, continued or not. False at the end.
  bool SkipBlank() {
    while (!AtEnd()) {
      if (absl::ascii_isspace(Peek())) {
        Take();
      } else if (Peek() == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') {
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

  void ReadWord(ShellWord* word) {
    while (!AtEnd() && !absl::ascii_isspace(Peek())) {
      const Place place{file_, line_, column_};
      const bool bracket = Peek() == '(' || Peek() == ')';  // A word of its own, as in ARGS=(--lr 1).
      if (bracket && !word->text.empty()) return;
      const char c = Take();
      if (bracket) {
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
        if (c == '$') Variable(place);
        word->text += c;
      }
    }
  }

  void ReadQuoted(char quote, const Place& opened, ShellWord* word) {
    while (!AtEnd()) {
      const Place place{file_, line_, column_};
      const char c = Take();
      if (c == quote) return;
      if (quote == '"' && c == '$') Variable(place);
      word->text += quote == '"' && c == '\\' && !AtEnd() ? Take() : c;
    }
    Fault("open_quote", opened, "the quote that is opened here is not closed", "close it");
  }

  void Variable(const Place& place) {
    // ${NAME:-otherwise}, $NAME, $(command)
    size_t end = at_ + (!AtEnd() && Peek() == '{' ? 1 : 0);
    const size_t begin = end;
    while (end < text_.size() && (absl::ascii_isalnum(text_[end]) || text_[end] == '_')) ++end;
    const absl::string_view name = text_.substr(begin, end - begin);
    Fault("shell_variable", place,
          name.empty() ? "the shell puts something here that is not in this text"
                       : absl::StrCat("the value of $", name, " is not in this text"),
          "write it here, or paste what `echo` prints of the arguments");
  }

  void Fault(const char* rule, const Place& place, const std::string& reason, const char* fix) {
    faults_.push_back({place, {rule, FaultLevel::kError, "", reason, fix, "", ""}});
  }

  const absl::string_view text_;
  const std::string file_;
  size_t at_ = 0;
  int line_ = 1;
  int column_ = 1;
  SpecFaults faults_;
};

}  // namespace

SpecFaults SplitShellWords(absl::string_view text, const std::string& file, std::vector<ShellWord>* words) {
  return Splitter(text, file).Run(words);
}

}  // namespace fsdpd
