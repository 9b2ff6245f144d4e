#include "fsdp/checkpoint/format/json.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

#include <set>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/format/pickle.h"

namespace fsdpd {
namespace {

constexpr absl::string_view kBlanks = " \t\n\r";

void AppendUtf8(uint32_t code, std::string* text) {
  const auto part = [&](int shift, uint32_t mark) {
    *text += static_cast<char>(mark | (code >> shift & 0x3F));
  };
  if (code < 0x80) {
    *text += static_cast<char>(code);
  } else if (code < 0x800) {
    *text += static_cast<char>(0xC0 | code >> 6);
    part(0, 0x80);
  } else if (code < 0x10000) {
    *text += static_cast<char>(0xE0 | code >> 12);
    part(6, 0x80);
    part(0, 0x80);
  } else {
    *text += static_cast<char>(0xF0 | code >> 18);
    part(12, 0x80);
    part(6, 0x80);
    part(0, 0x80);
  }
}

class Reader {
 public:
  Reader(absl::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  absl::StatusOr<JsonValue> Run() {
    if (static_cast<int64_t>(text_.size()) > limits_.bytes) return Wrong("document is too large");
    if (!IsUtf8(text_)) return Wrong("document is not UTF-8");
    JsonValue value;
    FSDPD_RETURN_IF_ERROR(Value(&value, 1));
    Blanks();
    if (at_ != text_.size()) return Wrong("unexpected data after the value");
    return value;
  }

 private:
  absl::Status Wrong(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat("JSON, byte ", at_, ": ", what));
  }

  void Blanks() {
    while (at_ < text_.size() && kBlanks.find(text_[at_]) != absl::string_view::npos) ++at_;
  }

  bool Take(char wanted) {
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  bool TakeWord(absl::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  absl::Status Value(JsonValue* value, int depth) {
    Blanks();
    if (depth > limits_.depth) return Wrong("nested too deeply");
    if (++values_ > limits_.values) return Wrong("too many values");
    if (Take('{')) return Object(value, depth);
    if (Take('[')) return List(value, depth);
    if (Take('"')) {
      value->kind = JsonValue::Kind::kText;
      return Text(&value->text);
    }
    if (TakeWord("null")) return absl::OkStatus();
    for (const char* flag : {"true", "false"}) {
      if (!TakeWord(flag)) continue;
      value->kind = JsonValue::Kind::kFlag;
      value->text = flag;
      return absl::OkStatus();
    }
    return Number(value);
  }

  absl::Status Object(JsonValue* value, int depth) {
    value->kind = JsonValue::Kind::kObject;
    Blanks();
    if (Take('}')) return absl::OkStatus();
    std::set<std::string> seen;
    do {
      Blanks();
      std::string key;
      if (!Take('"')) return Wrong("expected a key");
      FSDPD_RETURN_IF_ERROR(Text(&key));
      if (!seen.insert(key).second) return Wrong("duplicate key");
      Blanks();
      if (!Take(':')) return Wrong("expected ':' after a key");
      value->keys.push_back(std::move(key));
      value->items.emplace_back();
      FSDPD_RETURN_IF_ERROR(Value(&value->items.back(), depth + 1));
      Blanks();
    } while (Take(','));
    return Take('}') ? absl::OkStatus() : Wrong("unterminated object");
  }

  absl::Status List(JsonValue* value, int depth) {
    value->kind = JsonValue::Kind::kList;
    Blanks();
    if (Take(']')) return absl::OkStatus();
    do {
      value->items.emplace_back();
      FSDPD_RETURN_IF_ERROR(Value(&value->items.back(), depth + 1));
      Blanks();
    } while (Take(','));
    return Take(']') ? absl::OkStatus() : Wrong("unterminated array");
  }

  bool Digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && absl::ascii_isdigit(text_[at_])) ++at_;
    return at_ > begin;
  }

  absl::Status Number(JsonValue* value) {
    const size_t begin = at_;
    Take('-');
    if (!Take('0') && !Digits()) return Wrong("expected a value");
    if (Take('.') && !Digits()) return Wrong("invalid number");
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      if (!Digits()) return Wrong("invalid number");
    }
    value->kind = JsonValue::Kind::kNumber;
    value->text = std::string(text_.substr(begin, at_ - begin));
    return absl::OkStatus();
  }

  // Called after the opening quote.
  absl::Status Text(std::string* text) {
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_++];
      if (static_cast<unsigned char>(c) < 0x20) return Wrong("control character in a string");
      if (c != '\\') {
        *text += c;
      } else {
        FSDPD_RETURN_IF_ERROR(Escape(text));
      }
    }
    return Take('"') ? absl::OkStatus() : Wrong("unterminated string");
  }

  absl::Status Escape(std::string* text) {
    static constexpr absl::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    const char name = at_ < text_.size() ? text_[at_++] : '\0';
    if (name != 'u') {
      const size_t found = kNames.find(name);
      if (found == absl::string_view::npos) return Wrong("invalid escape sequence");
      *text += kMeant[found];
      return absl::OkStatus();
    }
    uint32_t code = 0, low = 0;
    if (!Hex(&code)) return Wrong("invalid escape sequence");
    // Characters beyond 16 bits are surrogate pairs; a single surrogate is invalid.
    if (code >= 0xD800 && code < 0xDC00) {
      if (!TakeWord("\\u") || !Hex(&low) || low < 0xDC00 || low > 0xDFFF) return Wrong("unpaired surrogate");
      code = 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
      return Wrong("unpaired surrogate");
    }
    AppendUtf8(code, text);
    return absl::OkStatus();
  }

  bool Hex(uint32_t* code) {
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ >= text_.size() || !absl::ascii_isxdigit(text_[at_])) return false;
      const char digit = absl::ascii_tolower(text_[at_]);
      *code = *code * 16 + static_cast<uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    }
    return true;
  }

  const absl::string_view text_;
  const JsonLimits limits_;
  size_t at_ = 0;
  int64_t values_ = 0;
};

}  // namespace

const JsonValue* JsonValue::Find(absl::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

absl::StatusOr<JsonValue> ParseJson(absl::string_view text, const JsonLimits& limits) {
  return Reader(text, limits).Run();
}

}  // namespace fsdpd
