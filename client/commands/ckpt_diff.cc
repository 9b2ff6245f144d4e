// Command `ckpt diff`: comparison of two checkpoints.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/spec_text/located_violation.h"
#include "client/commands/ckpt_commands.h"
#include "client/connect/outcome.h"
#include "client/flags/model_config_flag.h"
#include "client/text/message_output.h"
#include "client/text/text_table.h"
#include "fsdp/checkpoint/convert/compare.h"
#include "fsdp/checkpoint/job/origin_check.h"
#include "fsdp/plan/spec/model_difference.h"
#include "proto/fsdpd/v1/checkpoint.pb.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxOmittedNames = 8;

v1::CheckpointComparison ToProto(const CommandLine& line, const Comparison& comparison) {
  v1::CheckpointComparison proto;
  proto.set_first(ToUtf8(line.file));
  proto.set_second(ToUtf8(line.target));
  proto.set_equal(comparison.equal);
  for (const TensorDifference& difference : comparison.differences) {
    v1::CheckpointDifference* one = proto.add_differences();
    one->set_name(difference.name);
    one->set_first(difference.first);
    one->set_second(difference.second);
    if (difference.largest.has_value()) {
      one->set_different_values(difference.numbers);
      one->set_max_difference(*difference.largest);
    }
  }
  return proto;
}

std::string NumbersText(const v1::CheckpointDifference& difference) {
  if (!difference.has_max_difference())
    return difference.first() == difference.second() ? "bytes differ" : "";
  if (difference.different_values() == 0) return "none";
  return absl::StrCat(absl::StrFormat("%.3g", difference.max_difference()), " in ",
                      difference.different_values(),
                      difference.different_values() == 1 ? " value" : " values");
}

std::string Table(const v1::CheckpointComparison& comparison, bool of_parameters, int width) {
  if (comparison.differences().empty()) {
    return absl::StrCat("equal: ", comparison.equal(),
                        of_parameters ? " parameters\n" : " tensors and other entries\n");
  }
  TextTable table({"NAME", "FIRST", "SECOND", "LARGEST DIFFERENCE"});
  const auto shown = [](const std::string& text) { return text.empty() ? std::string("-") : Escaped(text); };
  for (const v1::CheckpointDifference& difference : comparison.differences()) {
    table.Add({Escaped(difference.name()), shown(difference.first()), shown(difference.second()),
               NumbersText(difference)});
  }
  return absl::StrCat(table.Render(0, width), "\n", comparison.differences_size(),
                      comparison.differences_size() == 1 ? " differs, " : " differ, ", comparison.equal(),
                      comparison.equal() == 1 ? " is equal\n" : " are equal\n");
}

void ReportOmitted(const std::string& directory, const std::vector<std::string>& names, Console* console) {
  if (names.empty()) return;
  const size_t shown = std::min(names.size(), kMaxOmittedNames);
  console->err << absl::StrCat(
      directory, ": note: not compared, not parameters of the model: ",
      Escaped(absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", ")),
      names.size() > shown ? absl::StrCat(" and ", names.size() - shown, " more") : "", "\n");
}

// Reads the model of --config or --spec; leaves `model` empty if neither was given.
int ReadModelFlag(const CommandLine& line, std::optional<ModelConfig>* model, Console* console) {
  if (!line.spec.empty() && !line.config.empty())
    return ReportUsageError("--config is not supported with --spec; remove one of them", console);
  if (line.spec.empty() && line.config.empty()) return kExitOk;
  v1::JobSpec job;
  std::string text;
  const int code = line.spec.empty() ? ReadConfigModel(line.config, console, job.mutable_model(), &text)
                                     : ReadSpecModel(line.spec, console, &job);
  if (code != kExitOk) return code;
  if (job.model().has_plugin())
    return ReportUsageError(absl::StrCat(line.spec, ": --spec is not supported for the model of a plug-in"),
                            console);
  *model = ToModelConfig(job.model());
  return kExitOk;
}

// Returns the model of the comparison: the one of a flag, else the first that a checkpoint states; nullopt if
// no source states one. Prints a note for each checkpoint that states a different model, because a setting
// such as the RoPE base does not show in the parameters.
absl::StatusOr<std::optional<ModelConfig>> ModelOfBoth(const CommandLine& line,
                                                       std::optional<ModelConfig> model,
                                                       const StoreToCompare& first,
                                                       const StoreToCompare& second, Console* console) {
  std::string from = absl::StrCat("in ", line.spec.empty() ? line.config : line.spec);
  for (const StoreToCompare* store : {&first, &second}) {
    FSDPD_ASSIGN_OR_RETURN(const std::optional<ModelConfig> stated,
                           StatedModel(store->directory, *store->reader));
    if (!stated.has_value()) continue;
    if (!model.has_value()) {
      model = stated;
      from = absl::StrCat("in ", store->directory);
      continue;
    }
    for (const std::string& each : ModelDifferences(*model, *stated, from))
      console->err << absl::StrCat(store->directory, ": note: its model differs: ", each, "\n");
  }
  return model;
}

}  // namespace

int RunCkptDiff(const CommandLine& line, Console* console) {
  std::optional<ModelConfig> given;
  if (const int code = ReadModelFlag(line, &given, console); code != kExitOk) return code;
  const absl::StatusOr<StoreToCompare> first = OpenToCompare(line.file);
  if (!first.ok()) return ReportCkptError(first.status(), console);
  const absl::StatusOr<StoreToCompare> second = OpenToCompare(line.target);
  if (!second.ok()) return ReportCkptError(second.status(), console);
  const absl::StatusOr<std::optional<ModelConfig>> model = ModelOfBoth(line, given, *first, *second, console);
  if (!model.ok()) return ReportCkptError(model.status(), console);
  const absl::StatusOr<Comparison> compared =
      CompareStores(*first, *second, *model, CkptThreads(), [console] { return IsInterrupted(*console); });
  if (!compared.ok()) return ReportCkptError(compared.status(), console);
  if (!compared->not_of_model.empty()) {
    console->err << "fsdpctl: note: compared by name, because a checkpoint does not match the model: "
                 << Escaped(compared->not_of_model) << "\n";
  }
  ReportOmitted(line.file, compared->left_out_first, console);
  ReportOmitted(line.target, compared->left_out_second, console);
  const v1::CheckpointComparison comparison = ToProto(line, *compared);
  console->out << (line.output == "table" ? Table(comparison, compared->of_parameters, console->width())
                                          : Rendered(comparison, line.output));
  return comparison.differences().empty() ? kExitOk : kExitDiffers;
}

}  // namespace fsdpd
