// fsdpctl ckpt diff: in what two checkpoints differ.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "base/spec_fault.h"
#include "client/ckpt_commands.h"
#include "client/message_output.h"
#include "client/outcome.h"
#include "client/text_table.h"
#include "fsdp/checkpoint/compare.h"
#include "proto/fsdpd/v1/checkpoint.pb.h"

namespace fsdpd {
namespace {

v1::CheckpointComparison ToProto(const CommandLine& line, const Comparison& comparison) {
  v1::CheckpointComparison proto;
  proto.set_first(ShownText(line.file));
  proto.set_second(ShownText(line.target));
  proto.set_equal(comparison.equal);
  for (const Difference& difference : comparison.differences) {
    v1::CheckpointDifference* one = proto.add_differences();
    one->set_name(difference.name);
    one->set_first(difference.first);
    one->set_second(difference.second);
    if (difference.largest.has_value()) {
      one->set_numbers(difference.numbers);
      one->set_largest(*difference.largest);
    }
  }
  return proto;
}

std::string NumbersText(const v1::CheckpointDifference& difference) {
  if (!difference.has_largest()) return difference.first() == difference.second() ? "other bytes" : "";
  if (difference.numbers() == 0) return "none";
  return absl::StrCat(absl::StrFormat("%.3g", difference.largest()), " in ", difference.numbers(),
                      difference.numbers() == 1 ? " number" : " numbers");
}

std::string Table(const v1::CheckpointComparison& comparison, int width) {
  if (comparison.differences().empty()) {
    return absl::StrCat("equal: ", comparison.equal(), " tensors and other entries\n");
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

}  // namespace

int RunCkptDiff(const CommandLine& line, Console* console) {
  const absl::StatusOr<Comparison> compared =
      CompareStores(line.file, line.target, CkptThreads(), [console] { return IsInterrupted(*console); });
  if (!compared.ok()) return FailCkpt(compared.status(), console);
  const v1::CheckpointComparison comparison = ToProto(line, *compared);
  console->out << (line.output == "table" ? Table(comparison, console->width())
                                          : Rendered(comparison, line.output));
  return comparison.differences().empty() ? kExitOk : kExitDiffers;
}

}  // namespace fsdpd
