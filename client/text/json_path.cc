#include "client/text/json_path.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "client/spec/spec_print.h"

namespace fsdpd {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// --- Parsing -----------------------------------------------------------------------------------------------

class JsonPathReader {
 public:
  explicit JsonPathReader(absl::string_view text) : text_(text) {}

  absl::StatusOr<JsonPath> Template() {
    JsonPath path;
    FSDPD_RETURN_IF_ERROR(Pieces(/*in_loop=*/false, &path.pieces_));
    return path;
  }

  absl::StatusOr<JsonPath> PathAlone() {
    JsonPath path;
    path.pieces_.emplace_back();
    path.pieces_.back().kind = JsonPath::Piece::Kind::kPath;
    FSDPD_RETURN_IF_ERROR(Path(&path.pieces_.back().path));
    if (at_ < text_.size()) return SyntaxError("unexpected '", text_.substr(at_), "'");
    return path;
  }

 private:
  using Step = JsonPath::Step;
  using Piece = JsonPath::Piece;

  template <typename... Words>
  absl::Status SyntaxError(const Words&... words) const {
    return absl::InvalidArgumentError(absl::StrCat("jsonpath '", text_, "': ", words...));
  }

  bool Take(absl::string_view word) {
    if (!absl::StartsWith(text_.substr(at_), word)) return false;
    at_ += word.size();
    return true;
  }
  void SkipBlanks() {
    while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
  }
  char Next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // The parser is recursive, so the nesting depth must be bounded.
  absl::Status Deeper() {
    if (++depth_ <= kMaxDepth) return absl::OkStatus();
    return SyntaxError("more than ", kMaxDepth, " nested ranges and filters");
  }

  absl::Status Pieces(bool in_loop, std::vector<Piece>* pieces) {
    FSDPD_RETURN_IF_ERROR(Deeper());
    while (at_ < text_.size()) {
      if (Next() != '{') {
        const size_t end = std::min(text_.find('{', at_), text_.size());
        pieces->emplace_back();
        pieces->back().text = std::string(text_.substr(at_, end - at_));
        at_ = end;
        continue;
      }
      ++at_;
      SkipBlanks();
      if (Take("end")) {
        if (!in_loop) return SyntaxError("{end} without a {range}");
        --depth_;
        return Close();
      }
      FSDPD_RETURN_IF_ERROR(Braces(pieces));
    }
    if (in_loop) return SyntaxError("{range} without its {end}");
    --depth_;
    return absl::OkStatus();
  }

  absl::Status Braces(std::vector<Piece>* pieces) {
    Piece piece;
    if (Next() == '"' || Next() == '\'') {
      FSDPD_RETURN_IF_ERROR(Quoted(&piece.text));
      FSDPD_RETURN_IF_ERROR(Close());
    } else if (Take("range ")) {
      SkipBlanks();
      piece.kind = Piece::Kind::kLoop;
      FSDPD_RETURN_IF_ERROR(Path(&piece.path));
      FSDPD_RETURN_IF_ERROR(Close());
      FSDPD_RETURN_IF_ERROR(Pieces(/*in_loop=*/true, &piece.body));
    } else {
      piece.kind = Piece::Kind::kPath;
      FSDPD_RETURN_IF_ERROR(Path(&piece.path));
      FSDPD_RETURN_IF_ERROR(Close());
    }
    pieces->push_back(std::move(piece));
    return absl::OkStatus();
  }

  absl::Status Close() {
    SkipBlanks();
    if (Take("}")) return absl::OkStatus();
    if (at_ >= text_.size()) return SyntaxError("a '{' without its '}'");
    return SyntaxError("unexpected '", text_.substr(at_), "'");
  }

  absl::Status Quoted(std::string* text) {
    const char quote = text_[at_++];
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\\' && at_ < text_.size()) {
        c = text_[at_++];
        c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
      }
      text->push_back(c);
    }
    return Take(std::string(1, quote)) ? absl::OkStatus() : SyntaxError("unterminated quote");
  }

  absl::Status Path(std::vector<Step>* path) {
    if (!Take("$")) Take("@");
    bool first = true;
    while (true) {
      if (path->size() > kMaxSteps) return SyntaxError("more than ", kMaxSteps, " steps");
      if (Take("..")) return SyntaxError("'..' is not supported");
      if (Take("[")) {
        FSDPD_RETURN_IF_ERROR(Bracket(path));
      } else if (Take(".") || (first && IsName(Next()))) {
        const size_t begin = at_;
        while (IsName(Next())) ++at_;
        if (at_ > begin) {
          AddField(text_.substr(begin, at_ - begin), path);
        } else if (!first || absl::StrContains(".$@", std::string(1, Next()))) {
          // A leading dot without a name, as in "{.}", is the root.
          return SyntaxError("a '.' without a name after it");
        }
      } else {
        return absl::OkStatus();
      }
      first = false;
    }
  }

  static bool IsName(char c) { return absl::ascii_isalnum(c) || c == '_'; }

  static void AddField(absl::string_view name, std::vector<Step>* path) {
    path->emplace_back();
    path->back().name = std::string(name);
  }

  absl::Status Bracket(std::vector<Step>* path) {
    if (Next() == '\'' || Next() == '"') {
      std::string name;
      FSDPD_RETURN_IF_ERROR(Quoted(&name));
      AddField(name, path);
    } else if (Take("?(")) {
      FSDPD_RETURN_IF_ERROR(Filter(path));
    } else {
      Step step;
      step.kind = Step::Kind::kRange;
      if (Take("*")) {
        step.is_open = true;
      } else {
        FSDPD_RETURN_IF_ERROR(Range(&step));
      }
      path->push_back(step);
    }
    return Take("]") ? absl::OkStatus() : SyntaxError("a '[' without its ']'");
  }

  bool Number(int64_t* number) {
    size_t end = at_;
    if (end < text_.size() && text_[end] == '-') ++end;
    while (end < text_.size() && absl::ascii_isdigit(text_[end])) ++end;
    if (!absl::SimpleAtoi(text_.substr(at_, end - at_), number)) return false;
    at_ = end;
    return true;
  }

  absl::Status Range(Step* step) {
    const bool from = Number(&step->first);
    if (Take(":")) {
      step->is_open = !Number(&step->end);
      return absl::OkStatus();
    }
    if (!from)
      return SyntaxError("invalid index; use a number, a range such as 1:3, *, a quoted name or ?(...)");
    step->end = step->first < INT64_MAX ? step->first + 1 : step->first;
    step->is_open = step->first == -1;  // [-1] is the last element: up to the end of the list.
    return absl::OkStatus();
  }

  absl::Status Filter(std::vector<Step>* path) {
    FSDPD_RETURN_IF_ERROR(Deeper());
    Step step;
    step.kind = Step::Kind::kFilter;
    SkipBlanks();
    if (Next() != '@')
      return SyntaxError("a filter must start with '@', for example ?(@.state==\"running\")");
    FSDPD_RETURN_IF_ERROR(Path(&step.condition));
    SkipBlanks();
    for (const char* relation : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (step.relation.empty() && Take(relation)) step.relation = relation;
    }
    SkipBlanks();
    if (!step.relation.empty()) {
      if (Next() == '\'' || Next() == '"') {
        FSDPD_RETURN_IF_ERROR(Quoted(&step.value));
      } else {
        const size_t end = std::min(text_.find(')', at_), text_.size());
        step.value = std::string(absl::StripAsciiWhitespace(text_.substr(at_, end - at_)));
        double number = 0;
        step.is_number = absl::SimpleAtod(step.value, &number);
        if (!step.is_number && step.value != "true" && step.value != "false")
          return SyntaxError("'", step.value, "' is not a number; put strings in quotes");
        at_ = end;
      }
    }
    SkipBlanks();
    if (!Take(")")) return SyntaxError("a '(' without its ')'");
    path->push_back(std::move(step));
    --depth_;
    return absl::OkStatus();
  }

  static constexpr int kMaxDepth = 8;
  static constexpr size_t kMaxSteps = 32;

  const absl::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

// --- Evaluation --------------------------------------------------------------------------------------------

class JsonPathWalk {
 public:
  explicit JsonPathWalk(const JsonPath& path) : path_(path) {}

  absl::StatusOr<std::string> Run(const Message& message) {
    FSDPD_RETURN_IF_ERROR(Pieces(path_.pieces_, Value{&message}));
    return std::move(out_);
  }

 private:
  using Step = JsonPath::Step;
  using Piece = JsonPath::Piece;

  static constexpr int kSingular = -1;
  static constexpr int kList = -2;

  // A message, or a scalar or list field of a message.
  struct Value {
    const Message* message = nullptr;
    const FieldDescriptor* field = nullptr;
    int index = kSingular;
  };
  using Values = std::vector<Value>;

  absl::Status Pieces(const std::vector<Piece>& pieces, const Value& root) {
    for (const Piece& piece : pieces) {
      if (piece.kind == Piece::Kind::kText) {
        out_ += piece.text;
        continue;
      }
      FSDPD_ASSIGN_OR_RETURN(const Values values, Follow(piece.path, root));
      for (size_t i = 0; i < values.size(); ++i) {
        if (piece.kind == Piece::Kind::kLoop) {
          FSDPD_RETURN_IF_ERROR(Pieces(piece.body, values[i]));
        } else {
          absl::StrAppend(&out_, i > 0 ? " " : "", Text(values[i]));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Values> Follow(const std::vector<Step>& path, const Value& root) {
    Values values = {root};
    for (const Step& step : path) {
      Values next;
      for (const Value& value : values) {
        if (step.kind == Step::Kind::kField) {
          FSDPD_RETURN_IF_ERROR(Field(step.name, value, &next));
        } else {
          FSDPD_RETURN_IF_ERROR(Elements(step, value, &next));
        }
      }
      values = std::move(next);
    }
    return values;
  }

  static absl::Status Field(const std::string& name, const Value& value, Values* next) {
    if (value.field != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "jsonpath: ", value.field->name(), " is ",
          value.index == kList ? "a list; add [*] or [0] before ." : "a scalar without a field .", name));
    }
    const FieldDescriptor* field = value.message->GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) field = value.message->GetDescriptor()->FindFieldByCamelcaseName(name);
    if (field == nullptr) return Unknown(name, *value.message);
    const auto& reflection = *value.message->GetReflection();
    if (field->is_repeated()) {
      next->push_back({value.message, field, kList});
    } else if (!field->has_presence() || reflection.HasField(*value.message, field)) {
      const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
      next->push_back(is_message ? Value{&reflection.GetMessage(*value.message, field)}
                                 : Value{value.message, field, kSingular});
    }
    return absl::OkStatus();
  }

  static absl::Status Unknown(const std::string& name, const Message& message) {
    std::vector<std::string> known;
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i)
      known.push_back(message.GetDescriptor()->field(i)->name());
    const std::string nearest = Nearest(name, known);
    return absl::InvalidArgumentError(
        absl::StrCat("jsonpath: unknown field '", name, "' of ", message.GetDescriptor()->name(),
                     nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
  }

  absl::Status Elements(const Step& step, const Value& value, Values* next) {
    if (value.field == nullptr || value.index != kList) {
      return absl::InvalidArgumentError(absl::StrCat(
          "jsonpath: ", value.field == nullptr ? value.message->GetDescriptor()->name() : value.field->name(),
          " is not a list; remove the brackets after it"));
    }
    const auto& reflection = *value.message->GetReflection();
    const int64_t size = reflection.FieldSize(*value.message, value.field);
    const auto from_end = [size](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
    };
    const bool all = step.kind == Step::Kind::kFilter;
    const int64_t end = all || step.is_open ? size : from_end(step.end);
    for (int64_t i = all ? 0 : from_end(step.first); i < end; ++i) {
      const int at = static_cast<int>(i);
      const bool is_message = value.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
      const Value element = is_message
                                ? Value{&reflection.GetRepeatedMessage(*value.message, value.field, at)}
                                : Value{value.message, value.field, at};
      bool holds = true;
      if (all) {
        FSDPD_ASSIGN_OR_RETURN(holds, Holds(step, element));
      }
      if (holds) next->push_back(element);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Holds(const Step& step, const Value& element) {
    FSDPD_ASSIGN_OR_RETURN(const Values values, Follow(step.condition, element));
    if (step.relation.empty()) return !values.empty();
    if (values.empty()) return step.relation == "!=";
    const std::string text = Text(values.front());
    double left = 0, right = 0;
    const bool numbers =
        step.is_number && absl::SimpleAtod(text, &left) && absl::SimpleAtod(step.value, &right);
    const int order = numbers ? (left > right) - (left < right) : text.compare(step.value);
    if (step.relation == "==") return order == 0;
    if (step.relation == "!=") return order != 0;
    if (step.relation == "<") return order < 0;
    if (step.relation == "<=") return order <= 0;
    return step.relation == ">" ? order > 0 : order >= 0;
  }

  static std::string Text(const Value& value) {
    if (value.field == nullptr) return ToJsonLine(*value.message);
    if (value.index != kList) return ScalarText(*value.message, *value.field, value.index);
    return ListLine(*value.message, *value.field);
  }

  const JsonPath& path_;
  std::string out_;
};

absl::StatusOr<JsonPath> JsonPath::Parse(absl::string_view text) { return JsonPathReader(text).Template(); }

absl::StatusOr<JsonPath> JsonPath::ParsePath(absl::string_view text) {
  if (absl::ConsumePrefix(&text, "{") && !absl::ConsumeSuffix(&text, "}"))
    return absl::InvalidArgumentError("a '{' without its '}'");
  return JsonPathReader(text).PathAlone();
}

absl::StatusOr<std::string> JsonPath::Render(const Message& message) const {
  return JsonPathWalk(*this).Run(message);
}

}  // namespace fsdpd
