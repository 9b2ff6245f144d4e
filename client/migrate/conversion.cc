#include "client/migrate/conversion.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/limits.h"
#include "client/migrate/conversion_rules.h"
#include "client/migrate/megatron_options.h"

namespace fsdpd {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

LocatedViolation* SpecConversion::Report(const char* rule, const char* setting,
                                         std::initializer_list<absl::AlphaNum> args) {
  const Setting* found = *setting == '\0' ? nullptr : settings.Find(setting);
  if (found == nullptr && *setting != '\0' && settings.incomplete()) return nullptr;
  if (found != nullptr && found->value_is_open()) return nullptr;
  violations.push_back({found != nullptr ? found->place : Place{file_, 0, 0},
                        MakeViolation(rule, found != nullptr ? found->written : setting, args)});
  return &violations.back();
}

void SpecConversion::Adjust(const char* rule, const char* setting, const absl::AlphaNum& before,
                            const absl::AlphaNum& after, std::initializer_list<absl::AlphaNum> args) {
  LocatedViolation* reported = Report(rule, setting, args);
  if (reported == nullptr) return;
  reported->violation.before = absl::StrCat(before);
  reported->violation.after = absl::StrCat(after);
}

bool SpecConversion::CheckChoice(const char* rule, const char* setting, const std::set<std::string>& known) {
  const std::string word = settings.Lower(setting, "");
  if (settings.Find(setting) == nullptr || !settings.AnyFlag(setting) || known.count(word) > 0) return true;
  if (word.empty()) return false;  // Settings::Text() has reported the missing value.
  Report(rule, setting,
         {absl::StrCat("'", word, "' is not a value of Megatron"),
          absl::StrCat("write one of ", absl::StrJoin(known, ", "))});
  return false;
}

std::optional<v1::DType> SpecConversion::Type(const char* setting) {
  const std::string text = settings.Lower(setting, "auto");
  if (absl::EndsWith(text, "bf16") || absl::EndsWith(text, "bfloat16")) return v1::DTYPE_BF16;
  if (absl::EndsWith(text, "fp32") || absl::EndsWith(text, "float32")) return v1::DTYPE_FP32;
  if (absl::EndsWith(text, "fp16") || absl::EndsWith(text, "float16")) return v1::DTYPE_FP16;
  if (text != "auto")
    Report("type_known", setting, {text, absl::StartsWith(setting, "exp_avg") ? ", or fp8" : ""});
  return std::nullopt;
}

int64_t SpecConversion::Times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

int64_t SpecConversion::Required(const char* name) {
  const std::optional<int64_t> value = settings.Integer(name);
  if (!value.has_value() && settings.Find(name) == nullptr) {  // Settings reports an invalid value.
    const std::string flag = absl::StrCat(" (--", absl::StrReplaceAll(name, {{"_", "-"}}), ")");
    Report("required", name,
           {"is not set, and the job requires it",
            absl::StrCat("add ", name, settings.trainer() == Trainer::kMegatron ? flag : "")});
  }
  return value.value_or(0);
}

std::optional<int64_t> SpecConversion::Steps(const char* iterations, const char* samples) {
  const std::optional<int64_t> steps = settings.Integer(iterations);
  const std::optional<int64_t> count = settings.Integer(samples);
  const int64_t batch = job.train().global_batch();
  if (!count.has_value() || *count == 0 || batch <= 0 || steps.value_or(0) != 0) return steps;
  const int64_t whole = *count / batch;
  Adjust("samples_are_steps", samples, absl::StrCat(*count, " samples"), absl::StrCat(whole, " steps"),
         {batch});
  return whole;
}

void SpecConversion::Refuse(const char* setting, absl::string_view feature) {
  Report("not_supported", setting, {absl::StrCat(feature, " is not supported")});
}

int64_t SpecConversion::CountReplicas() const {
  const auto degree = [](int64_t size) { return std::clamp<int64_t>(size, 1, kMaxWorld); };
  const v1::Parallel& axes = job.parallel();
  return Times(job.resources().nodes(), job.resources().ranks_per_node()) /
         (degree(axes.tensor()) * degree(axes.context()) * degree(axes.pipeline()));
}

void SpecConversion::SetOuter(int64_t replicas, v1::Strategy strategy) {
  if (replicas <= 1) return;
  job.mutable_fsdp()->mutable_outer()->set_size(replicas);
  job.mutable_fsdp()->mutable_outer()->set_strategy(strategy);
}

void SpecConversion::SetCompute(bool bf16, bool fp16, const char* hysteresis) {
  job.mutable_precision()->set_compute(bf16 ? v1::DTYPE_BF16 : fp16 ? v1::DTYPE_FP16 : v1::DTYPE_FP32);
  if (!fp16) return;
  job.mutable_precision()->mutable_loss_scale();
  Fill("precision.loss_scale");
  if (const int64_t overflows = settings.Integer(hysteresis, 2); overflows != 1)
    Adjust("loss_scale_hysteresis", hysteresis, overflows, "1");
}

void SpecConversion::SetPrefetch(std::optional<int64_t> elements) {
  const int64_t element_bytes = job.precision().compute() == v1::DTYPE_FP32 ? 4 : 2;
  if (elements.has_value() && job.fsdp().strategy() == v1::STRATEGY_OPTIM_GRADS_PARAMS)
    job.mutable_fsdp()->set_prefetch_bytes(Times(*elements, element_bytes));
}

void SpecConversion::Fill(absl::string_view message) {
  for (const FieldRow& row : settings.table().fields) {
    if (row.parent == message && row.source != FieldRow::Source::kConverter) FillField(row);
  }
}

void SpecConversion::FillField(const FieldRow& row) {
  const char* name = row.settings.front().c_str();
  for (auto each = row.settings.rbegin(); each != row.settings.rend(); ++each) {
    if (settings.Find(*each) != nullptr) name = each->c_str();
  }
  Message* message = &job;
  for (const absl::string_view part : absl::StrSplit(row.parent, '.')) {
    const FieldDescriptor* child = message->GetDescriptor()->FindFieldByName(std::string(part));
    message = message->GetReflection()->MutableMessage(message, child);
  }
  const FieldDescriptor* field =
      message->GetDescriptor()->FindFieldByName(row.name.substr(0, row.name.find('[')));
  const auto* reflection = message->GetReflection();
  const bool has_default = row.source == FieldRow::Source::kDefault;
  if (row.source == FieldRow::Source::kRequired) {
    reflection->SetInt64(message, field, Required(name));
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    int64_t value = 0;
    FSDPD_CHECK(!has_default || absl::SimpleAtoi(row.default_value, &value));
    const std::optional<int64_t> written = settings.Integer(name);
    if (written.has_value() || has_default) reflection->SetInt64(message, field, written.value_or(value));
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    double value = 0;
    FSDPD_CHECK(!has_default || absl::SimpleAtod(row.default_value, &value));
    const std::optional<double> written = settings.Real(name);
    if (!written.has_value() && !has_default) return;
    if (field->is_repeated()) return reflection->AddDouble(message, field, written.value_or(value));
    reflection->SetDouble(message, field, written.value_or(value));
  } else {
    FSDPD_CHECK(field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL);
    reflection->SetBool(message, field, settings.Flag(name, row.default_value == "true"));
  }
}

void SpecConversion::ReportUnread() {
  const OptionTable& table = settings.table();
  std::set<std::string> without_effect, environment, of_launcher, unknown;
  for (const Setting* setting : settings.unused()) {
    switch (KindOf(*setting, table)) {
      case OptionKind::kWithoutEffect:
        without_effect.insert(setting->written);
        break;
      case OptionKind::kOfLauncher:
        of_launcher.insert(setting->written);
        break;
      case OptionKind::kUnknown: {
        const std::string suggestion = SuggestOption(*setting, settings.requested(), table);
        unknown.insert(suggestion.empty()
                           ? setting->written
                           : absl::StrCat(setting->written, " (did you mean ", suggestion, "?)"));
        break;
      }
      case OptionKind::kNotSupported:
        Report("not_supported", setting->name.c_str(), {DescribeUnsupported(*setting, table)});
        break;
    }
  }
  for (const auto& [name, variable] : settings.variables()) {
    // The rule `connections` has already reported it.
    if (name == "CUDA_DEVICE_MAX_CONNECTIONS" && variable.values.front() == "1") continue;
    for (const char* beginning : {"NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "NVTE_"}) {
      if (absl::StartsWith(name, beginning)) environment.insert(name);
    }
  }
  ReportNames("without_effect", without_effect);
  ReportNames("environment", environment);
  ReportNames("of_launcher", of_launcher);
  ReportNames("not_known", unknown);
}

void SpecConversion::ReportNames(const char* rule, const std::set<std::string>& names) {
  if (names.empty()) return;
  Report(rule, "",
         {absl::StrCat(names.size(), names.size() == 1 ? " setting is" : " settings are"),
          absl::StrJoin(names, ", ")});
}

}  // namespace fsdpd
