#include "client/text/plan_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/text.h"
#include "client/text/text_table.h"
#include "fsdp/plan/prediction.h"

namespace fsdpd {
namespace {

std::string MemoryText(const v1::Plan& plan) {
  const v1::MemoryPlan& memory = plan.memory();
  TextTable table({"COMPONENT", "BYTES", "NOTE"});
  for (const auto& c : memory.components()) {
    if (c.bytes() > 0) table.Add({c.name(), HumanBytes(c.bytes()), c.note()});
  }
  table.Add({"peak", HumanBytes(memory.peak_bytes()), ""});
  if (memory.host_bytes() > 0) {
    table.Add({"host", HumanBytes(memory.host_bytes()), HostMemoryNote(plan.resolved())});
  }
  return absl::StrCat("\nmemory per rank:\n", table.Render(2));
}

// Consecutive units with equal sizes ("layer.0 .. layer.7") are one line.
std::string UnitText(const v1::Plan& plan) {
  const auto exchanges = [](const v1::Plan::Unit& unit) { return unit.exchanged_bytes() > 0; };
  const bool shared = std::any_of(plan.units().begin(), plan.units().end(), exchanges);
  std::vector<std::string> columns = {"UNIT", "PARAMETERS", "GATHERED", "SHARD", "ACTIVATIONS"};
  if (shared) columns.push_back("EXCHANGED");
  TextTable table(columns);
  const auto same = [](const v1::Plan::Unit& a, const v1::Plan::Unit& b) {
    return a.parameters() == b.parameters() && a.gathered_bytes() == b.gathered_bytes() &&
           a.shard_bytes() == b.shard_bytes() && a.activation_bytes() == b.activation_bytes() &&
           a.exchanged_bytes() == b.exchanged_bytes();
  };
  for (int i = 0; i < plan.units_size();) {
    int end = i + 1;
    while (end < plan.units_size() && same(plan.units(i), plan.units(end))) ++end;
    const v1::Plan::Unit& unit = plan.units(i);
    const std::string name =
        end == i + 1 ? unit.name() : absl::StrCat(unit.name(), " .. ", plan.units(end - 1).name());
    std::vector<std::string> row = {name, HumanCount(static_cast<double>(unit.parameters())),
                                    HumanBytes(unit.gathered_bytes()), HumanBytes(unit.shard_bytes()),
                                    HumanBytes(unit.activation_bytes())};
    if (shared) row.push_back(HumanBytes(unit.exchanged_bytes()));
    table.Add(row);
    i = end;
  }
  return absl::StrCat("\nunits (each):\n", table.Render(2));
}

// Pipeline stages. The other sections of the plan describe the stage with the highest peak memory.
std::string StagesText(const v1::Plan& plan) {
  if (plan.stages_size() == 0) return "";
  const bool timed = plan.has_prediction();
  std::vector<std::string> columns = {"STAGE", "UNITS", "FROM", "TO", "PARAMETERS", "PEAK", "WORK"};
  if (timed) columns.push_back("IDLE");
  TextTable table(columns);
  for (int s = 0; s < plan.stages_size(); ++s) {
    const v1::Plan::Stage& stage = plan.stages(s);
    std::vector<std::string> from, to;  // One entry per chunk.
    for (const v1::Plan::Stage::Chunk& chunk : stage.chunks()) {
      from.push_back(chunk.first_unit());
      to.push_back(chunk.last_unit());
    }
    std::vector<std::string> row = {absl::StrCat(s),
                                    absl::StrCat(stage.units()),
                                    absl::StrJoin(from, ", "),
                                    absl::StrJoin(to, ", "),
                                    HumanCount(static_cast<double>(stage.parameters())),
                                    HumanBytes(stage.peak_bytes()),
                                    absl::StrFormat("%.0f%%", 100 * stage.work_ratio())};
    if (timed) row.push_back(absl::StrFormat("%.1f%%", 100 * stage.idle_ratio()));
    table.Add(row);
  }
  return absl::StrCat("\nstages (peak of each rank, work over the mean):\n", table.Render(2));
}

const char* NameOf(v1::CommOp op) {
  switch (op) {
    case v1::COMM_OP_ALL_GATHER:
      return "all_gather";
    case v1::COMM_OP_REDUCE_SCATTER:
      return "reduce_scatter";
    case v1::COMM_OP_ALL_REDUCE:
      return "all_reduce";
    case v1::COMM_OP_OUTER_REDUCE:
      return "outer_reduce";
    case v1::COMM_OP_OUTER_GATHER:
      return "outer_gather";
    case v1::COMM_OP_STAGE:
      return "stage";
    default:
      return "?";
  }
}

// Cost of a checkpoint snapshot. The step time of the prediction is that of a step without a snapshot.
std::string SnapshotText(const v1::Prediction& p) {
  const std::string text = absl::StrCat(Milliseconds(p.snapshot_seconds()), " during the next step");
  if (p.snapshot_stall_seconds() <= 0) return text;
  return absl::StrCat(text, ", which takes ", Milliseconds(p.snapshot_stall_seconds()), " longer");
}

std::string OffloadText(const v1::Prediction& p) {
  const std::string text = absl::StrCat(Milliseconds(p.offload_seconds()), " in each direction");
  if (p.offload_stall_seconds() <= 0) return text;
  return absl::StrCat(text, ", adds ", Milliseconds(p.offload_stall_seconds()), " to the step");
}

std::string PredictionText(const v1::Plan& plan) {
  if (!plan.has_prediction()) return "";
  const v1::Prediction& p = plan.prediction();
  const double exposed = p.step_seconds() > 0 ? 100 * ExposedSeconds(p) / p.step_seconds() : 0;
  const double each = p.tokens_per_second() / static_cast<double>(std::max<int64_t>(plan.world_size(), 1));
  std::string text = absl::StrCat("\nprediction for ", p.profile().name(), " (an estimate):\n");
  absl::StrAppendFormat(&text, "  step           %s, compute %s\n", Milliseconds(p.step_seconds()),
                        Milliseconds(p.compute_seconds()));
  absl::StrAppendFormat(&text, "  exposed        %s (%.1f%% of the step)\n", Milliseconds(ExposedSeconds(p)),
                        exposed);
  absl::StrAppendFormat(&text, "  tokens/s       %.0f, %.0f per rank\n", p.tokens_per_second(), each);
  const bool fp8 = plan.resolved().precision().compute() == v1::DTYPE_FP8;
  absl::StrAppendFormat(&text, "  mfu            %.1f%%%s\n", 100 * p.mfu(), fp8 ? " of the bf16 peak" : "");
  if (plan.stages_size() > 0) {
    absl::StrAppendFormat(&text, "  bubble         %s (%.1f%% of the step), the mean of the stages\n",
                          Milliseconds(p.bubble_seconds()), 100 * p.bubble_seconds() / p.step_seconds());
  }
  if (p.snapshot_seconds() > 0) absl::StrAppend(&text, "  snapshot       ", SnapshotText(p), "\n");
  if (p.offload_seconds() > 0) absl::StrAppend(&text, "  offload        ", OffloadText(p), "\n");
  if (p.ops_size() + p.exchanges_size() == 0) return text;
  TextTable table({"COMMUNICATION", "COUNT", "RECEIVED", "TIME", "EXPOSED"});
  for (const v1::OpTime& op : p.ops()) {
    table.Add({NameOf(op.op()), absl::StrCat(op.count()), HumanBytes(op.bytes()), Milliseconds(op.seconds()),
               Milliseconds(op.exposed_seconds())});
  }
  for (const v1::Prediction::Exchange& exchange : p.exchanges()) {
    table.Add({absl::StrCat(exchange.group(), " exchanges"), absl::StrCat(exchange.count()),
               HumanBytes(exchange.bytes()), Milliseconds(exchange.seconds()),
               Milliseconds(exchange.seconds())});
  }
  return absl::StrCat(text, table.Render(2));
}

// Communication groups. Exchanges within units are part of compute time, and therefore entirely exposed.
std::string GroupsText(const v1::Plan& plan) {
  if (plan.prediction().groups_size() == 0) return "";
  TextTable table(
      {"GROUP", "AXES", "RANKS", "GROUPS", "NODES", "FIRST", "COUNT", "RECEIVED", "TIME", "EXPOSED"});
  for (const auto& group : plan.prediction().groups()) {
    table.Add({group.group(), absl::StrJoin(group.axes(), ", "), absl::StrCat(group.ranks()),
               absl::StrCat(group.groups()), absl::StrCat(group.nodes()), group.members(),
               absl::StrCat(group.count()), HumanBytes(group.bytes()), Milliseconds(group.seconds()),
               Milliseconds(group.exposed_seconds())});
  }
  return absl::StrCat("\ncommunication groups (mesh: ", MeshText(plan.mesh()), "):\n", table.Render(2));
}

std::string ProgramText(const v1::Plan& plan, bool program) {
  std::string text =
      absl::StrCat("\nprogram ", plan.program_hash(), ", ", plan.instructions_size(), " instructions");
  if (!program) {
    std::map<std::string, int> counts;
    for (const auto& i : plan.instructions()) ++counts[i.op()];
    for (const auto& [op, count] : counts) absl::StrAppend(&text, ", ", count, " ", op);
    return absl::StrCat(text, "\n");
  }
  TextTable table({"#", "OP", "UNIT", "MICRO_BATCH", "LANE", "AFTER"});
  for (int n = 0; n < plan.instructions_size(); ++n) {
    const auto& i = plan.instructions(n);
    table.Add({absl::StrCat(n), i.op(), i.unit(), i.micro_batch() < 0 ? "" : absl::StrCat(i.micro_batch()),
               i.lane(), absl::StrJoin(i.after(), ",")});
  }
  return absl::StrCat(text, "\n", table.Render(2));
}

}  // namespace

std::string HostMemoryNote(const v1::JobSpec& spec) {
  const v1::Fsdp::Offload& offload = spec.fsdp().offload();
  const bool offloads = offload.optimizer() || offload.activation_layers() > 0;
  const bool saves = !spec.checkpoint().dir().empty();
  return absl::StrCat("pinned host memory: ", saves || !offloads ? "checkpoint snapshots" : "",
                      saves && offloads ? ", " : "", offloads ? "offloaded data" : "");
}

std::string Milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return absl::StrFormat("%.*f ms", ms < 10 ? 2 : ms < 1000 ? 1 : 0, ms);
}

std::string MeshText(const v1::Mesh& mesh) {
  std::vector<std::string> axes;
  for (const auto& [name, size] :
       {std::pair("pipeline", mesh.pipeline()), std::pair("replicate", mesh.replicate()),
        std::pair("shard", mesh.shard()), std::pair("expert", mesh.expert()),
        std::pair("context", mesh.context()), std::pair("tensor", mesh.tensor())}) {
    if (size > 1) axes.push_back(absl::StrCat(name, " ", size));
  }
  return axes.empty() ? "one rank" : absl::StrJoin(axes, " x ");
}

std::string PlanText(const v1::Plan& plan, bool program) {
  const int64_t context = plan.resolved().parallel().context();
  const int64_t tensor = plan.resolved().parallel().tensor(), expert = plan.resolved().parallel().expert();
  const int64_t pipeline = plan.resolved().parallel().pipeline();
  const std::string sharing = absl::StrCat(pipeline > 1 ? absl::StrCat(" in ", pipeline, " stages") : "",
                                           context > 1 ? absl::StrCat(", context parallel ", context) : "",
                                           tensor > 1 ? absl::StrCat(", tensor parallel ", tensor) : "",
                                           expert > 1 ? absl::StrCat(", expert parallel ", expert) : "");
  // An older coordinator does not send the number.
  const std::string all = HumanCount(static_cast<double>(plan.parameters())),
                    trained = HumanCount(static_cast<double>(plan.trainable_parameters()));
  const std::string trainable =
      plan.trainable_parameters() == 0 || trained == all ? "" : absl::StrCat(" (", trained, " trainable)");
  std::string text =
      absl::StrCat(plan.resolved().name(), ": ", all, " parameters", trainable, " on ", plan.world_size(),
                   " ranks", sharing, ", padding ", absl::StrFormat("%.2f%%", 100 * plan.padding_ratio()),
                   ", ", absl::StrFormat("%.3g", plan.flops_per_step()), " FLOPs per step\n");
  TextTable choices({"FIELD", "VALUE", "REASON"});
  for (const auto& choice : plan.choices()) choices.Add({choice.field(), choice.value(), choice.reason()});
  if (plan.choices_size() > 0) absl::StrAppend(&text, "\ndefaults and auto:\n", choices.Render(2));
  return absl::StrCat(text, MemoryText(plan), StagesText(plan), PredictionText(plan), GroupsText(plan),
                      UnitText(plan), ProgramText(plan, program));
}

}  // namespace fsdpd
