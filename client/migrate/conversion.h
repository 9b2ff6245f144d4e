// State of one conversion: the settings of a run that it reads, the job spec that it writes, and the
// violations that it reports.
//
// The converters (of Megatron: megatron_model.h, megatron_training.h, megatron_precision.h, megatron_job.cc)
// receive it in this order. A converter may read fields that an earlier one wrote into the job. Not
// thread-safe.
#pragma once

#include <absl/strings/str_cat.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "client/migrate/settings.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

class SpecConversion {
 public:
  // `read` and `written` must outlive the conversion. `file` is the place of violations without a setting.
  SpecConversion(Settings* read, std::string file, v1::JobSpec* written)
      : settings(*read), job(*written), file_(std::move(file)) {}

  // Reports a violation of a rule of conversion_rules.cc at the setting's place, with the name as written
  // there ("--lr", "optimizer.lr"), and with `args` in its message. Does nothing if the setting's value is
  // unknown, or if the setting is missing and the text is incomplete (Settings::incomplete), because the
  // setting may be correct then. `setting` may be empty. Returns the violation, or null.
  LocatedViolation* Report(const char* rule, const char* setting,
                           std::initializer_list<absl::AlphaNum> args = {});
  // Reports a setting whose value changes in the job, with the values before and after.
  void Adjust(const char* rule, const char* setting, const absl::AlphaNum& before,
              const absl::AlphaNum& after, std::initializer_list<absl::AlphaNum> args = {});

  // True if the setting is unset or its value is one of `known`. Reports an error for any other value: a
  // misspelled choice would otherwise silently train with the default.
  bool CheckChoice(const char* rule, const char* setting, const std::set<std::string>& known);

  // Returns the dtype, or nullopt if the setting is unset or `auto`. Also reports an error for an unknown
  // dtype. The spec's rules decide whether a known dtype is supported.
  std::optional<v1::DType> Type(const char* setting);

  // Returns the value, or 0 after reporting an error if the setting is not set.
  int64_t Required(const char* name);

  // Returns a length that Megatron counts either in steps or in samples. Samples are divided by the job's
  // global batch and rounded down: 1000 samples with a batch of 64 are 15 steps.
  std::optional<int64_t> Steps(const char* iterations, const char* samples);

  // Reports a setting that a spec cannot express.
  void Refuse(const char* setting, absl::string_view feature);

  // Data-parallel replicas: ranks of the cluster, without those that share each sample.
  int64_t CountReplicas() const;

  // Adds an outer axis if there are several replicas of the shards.
  void SetOuter(int64_t replicas, v1::Strategy strategy = v1::STRATEGY_NO_SHARD);

  // Sets precision.compute to bf16, else fp16, else fp32. fp16 has a loss scale; `hysteresis` is a setting.
  void SetCompute(bool bf16, bool fp16, const char* hysteresis);

  // Sets the prefetch limit of sharded parameters, in elements of the dtype of compute.
  void SetPrefetch(std::optional<int64_t> elements);

  // Writes the fields of one message ("optimizer.adamw") for which the trainer's table says that they are
  // required, optional, or have a default. Reports an error for a required setting that is not set.
  void Fill(absl::string_view message);

  // Reports the settings that the conversion did not read: an error for each that a spec cannot express, and
  // one warning for each other kind of settings (megatron_options.h).
  void ReportUnread();

  // Saturating product, because values in the input have no bound.
  static int64_t Times(int64_t a, int64_t b);

  Settings& settings;
  v1::JobSpec& job;
  LocatedViolations violations;

 private:
  void FillField(const FieldRow& row);
  void ReportNames(const char* rule, const std::set<std::string>& names);

  const std::string file_;
};

}  // namespace fsdpd
