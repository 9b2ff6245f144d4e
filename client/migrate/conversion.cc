#include "client/migrate/conversion.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include <limits>

#include "base/check.h"
#include "client/migrate/conversion_rules.h"

namespace fsdpd {

void SpecConversion::AddViolation(const char* rule, ViolationLevel level, const char* setting,
                                  const std::string& reason, const std::string& fix) {
  FSDPD_CHECK(IsConversionRule(rule, level));
  const Setting* found = *setting == '\0' ? nullptr : settings.Find(setting);
  if (found == nullptr && *setting != '\0' && settings.incomplete()) return;
  if (found != nullptr && found->value_is_open()) return;
  LocatedViolation located;
  located.place = found != nullptr ? found->place : Place{file_, 0, 0};
  located.violation = {rule, level, found != nullptr ? found->written : setting, reason, fix, "", ""};
  violations.push_back(std::move(located));
}

void SpecConversion::Adjust(const char* rule, const char* setting, const std::string& reason,
                            const std::string& before, const std::string& after) {
  const size_t reported = violations.size();
  AddViolation(rule, ViolationLevel::kAdjust, setting, reason, "");
  if (violations.size() == reported) return;
  violations.back().violation.before = before;
  violations.back().violation.after = after;
}

bool SpecConversion::CheckChoice(const char* rule, const char* setting, const std::set<std::string>& known) {
  const std::string word = settings.Lower(setting).value_or("");
  if (settings.Find(setting) == nullptr || !settings.AnyFlag(setting) || known.count(word) > 0) return true;
  if (word.empty()) return false;  // Settings::Text() has reported the missing value.
  Error(rule, setting, absl::StrCat("'", word, "' is not a value of Megatron"),
        absl::StrCat("write one of ", absl::StrJoin(known, ", ")));
  return false;
}

std::optional<v1::DType> SpecConversion::Type(const char* setting) {
  const std::string text = settings.Lower(setting).value_or("auto");
  if (absl::EndsWith(text, "bf16") || absl::EndsWith(text, "bfloat16")) return v1::DTYPE_BF16;
  if (absl::EndsWith(text, "fp32") || absl::EndsWith(text, "float32")) return v1::DTYPE_FP32;
  if (absl::EndsWith(text, "fp16") || absl::EndsWith(text, "float16")) return v1::DTYPE_FP16;
  if (text == "auto") return std::nullopt;
  Error("type_known", setting, absl::StrCat("'", text, "' is not supported"),
        absl::StrCat("write fp32 or bf16", absl::StartsWith(setting, "exp_avg") ? ", or fp8" : ""));
  return std::nullopt;
}

int64_t SpecConversion::Times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

int64_t SpecConversion::Required(const char* name) {
  const std::optional<int64_t> value = settings.Integer(name);
  if (!value.has_value() && settings.Find(name) == nullptr) {  // Settings reports an invalid value.
    Error("required", name, "is not set, and the job requires it",
          absl::StrCat("add ", name, " (--", absl::StrReplaceAll(name, {{"_", "-"}}), ")"));
  }
  return value.value_or(0);
}

std::optional<int64_t> SpecConversion::Steps(const char* iterations, const char* samples) {
  const std::optional<int64_t> steps = settings.Integer(iterations);
  const std::optional<int64_t> count = settings.Integer(samples);
  const int64_t batch = job.train().global_batch();
  if (!count.has_value() || *count == 0 || batch <= 0 || steps.value_or(0) != 0) return steps;
  const int64_t whole = *count / batch;
  Adjust("samples_are_steps", samples, absl::StrCat("converted to whole steps of ", batch, " samples"),
         absl::StrCat(*count, " samples"), absl::StrCat(whole, " steps"));
  return whole;
}

}  // namespace fsdpd
