// Rules of model.package: the manifest is untrusted input. Its own limits come first, then the shape and
// types that the job must have. Rules of other sections refuse what needs the Llama family.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/spec_text/enum_name.h"
#include "fsdp/plan/rules/described_rules.h"

namespace fsdpd {
namespace {

constexpr size_t kDigestDigits = 64;
constexpr int64_t kMaxHidden = 1 << 17;
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr double kMaxFlops = 1e24;
constexpr double kMaxSeconds = 86400;  // Of one call.
constexpr int kMaxVariants = 3;

constexpr char kExportAgain[] = "export the package again: fsdpctl model export";

const v1::Package& PackageOf(const Facts& f) { return f.job.model().package(); }

// The client has read the package.
bool IsRead(const Facts& f) { return f.job.model().has_package() && !PackageOf(f).digest().empty(); }

// Read, with units and graphs that refer to each other.
bool IsConnected(const Facts& f) { return IsRead(f) && f.IsValid({"model.package.units"}); }

// Read, and valid by itself.
bool IsSound(const Facts& f) { return IsRead(f) && f.IsValid({"model"}); }

std::string GraphField(int64_t graph, absl::string_view name) {
  return absl::StrCat("model.package.graphs[", graph, "].", name);
}

// A graph has no name: the first unit that uses it identifies it.
std::string GraphName(const v1::Package& package, int64_t graph) {
  for (const v1::Package::Unit& unit : package.units()) {
    if (unit.graph() == graph) return absl::StrCat("graph ", graph, " (unit ", ShownName(unit.name()), ")");
  }
  return absl::StrCat("graph ", graph);
}

DescribedUnits UnitsOf(const Facts& f) {
  DescribedUnits units;
  if (!IsConnected(f)) return units;
  for (const v1::Package::Unit& from : PackageOf(f).units()) {
    DescribedUnit& unit = units.emplace_back();
    unit.field = absl::StrCat("model.package.units[", units.size() - 1, "]");
    unit.name = from.name();
    unit.tied_to = from.tied_to();
    unit.params_field = GraphField(from.graph(), "params");
    unit.module = from.module();
    for (const v1::Package::Param& param : PackageOf(f).graphs(static_cast<int>(from.graph())).params())
      unit.params.push_back({&param.name(), &param.shape()});
  }
  return units;
}

Findings ChecksDigest(const Facts& f) {
  const std::string& digest = PackageOf(f).digest();
  if (!IsRead(f)) return {};
  const bool is_hex = digest.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (is_hex && digest.size() == kDigestDigits) return {};
  return {{"the digest is not a SHA-256 in 64 lower-case hexadecimal digits",
           "leave out all fields except path, and submit with fsdpctl, which reads the package"}};
}

Findings ChecksShape(const Facts& f) {
  if (!IsRead(f)) return {};
  const int64_t sequence = PackageOf(f).sequence_length(), samples = PackageOf(f).micro_batch_size();
  Findings findings =
      CheckRange(PackageOf(f).vocab_size(), 1, kMaxDescribedVocab, "vocab_size", kExportAgain);
  AddFindings(CheckRange(sequence, 1, kMaxSequence, "sequence_length", kExportAgain),
              "model.package.sequence_length", &findings);
  const int64_t tokens_each = std::clamp<int64_t>(sequence, 1, kMaxSequence);
  AddFindings(CheckRange(samples, 1, kMaxMicroBatchTokens / tokens_each, "micro_batch_size", kExportAgain),
              "model.package.micro_batch_size", &findings);
  AddFindings(CheckRange(PackageOf(f).buffer_bytes(), 0, kMaxBytes, "buffer_bytes", kExportAgain),
              "model.package.buffer_bytes", &findings);
  return findings;
}

bool IsComputeType(v1::DType type) {
  return type == v1::DTYPE_FP32 || type == v1::DTYPE_BF16 || type == v1::DTYPE_FP16;
}

Findings ChecksTypes(const Facts& f) {
  if (!IsRead(f)) return {};
  Findings findings;
  if (!IsComputeType(PackageOf(f).compute()))
    findings.push_back({absl::StrCat("a package cannot compute in ", ShortEnumName(PackageOf(f).compute()),
                                     " (want fp32, bf16 or fp16)"),
                        kExportAgain});
  const v1::Device device = PackageOf(f).device();
  if (device != v1::DEVICE_CPU && device != v1::DEVICE_CUDA)
    findings.push_back({absl::StrCat("unknown device ", ShortEnumName(device), " (want cpu or cuda)"),
                        kExportAgain, "model.package.device"});
  return findings;
}

// The only head must be of the last unit, whose graph no other unit shares.
void CheckHeads(const v1::Package& package, Findings* findings) {
  std::vector<int> uses(package.graphs_size());
  for (const v1::Package::Unit& unit : package.units()) ++uses[unit.graph()];
  const int64_t last = package.units().rbegin()->graph();
  for (int g = 0; g < package.graphs_size(); ++g) {
    const bool is_last = g == last;
    if (package.graphs(g).has_head() == is_last && (!is_last || uses[g] == 1)) continue;
    findings->push_back(
        {is_last ? "the last unit needs a graph of its own, with a head"
                 : absl::StrCat(GraphName(package, g), " has a head, and is not that of the last unit"),
         kExportAgain});
  }
}

Findings ChecksUnits(const Facts& f) {
  if (!IsRead(f)) return {};
  const v1::Package& package = PackageOf(f);
  Findings findings = CheckUnitCount(package.units_size(), kExportAgain);
  if (package.graphs_size() > package.units_size())
    findings.push_back({absl::StrCat("the package has ", package.graphs_size(), " graphs for ",
                                     package.units_size(), " units"),
                        kExportAgain});
  int64_t params = 0;
  for (int u = 0; u < package.units_size(); ++u) {
    const int64_t graph = package.units(u).graph();
    if (graph >= 0 && graph < package.graphs_size()) {
      params += package.graphs(static_cast<int>(graph)).params_size();
      continue;
    }
    findings.push_back({absl::StrCat("unit ", ShownName(package.units(u).name()), " has graph ", graph,
                                     " of ", package.graphs_size()),
                        kExportAgain, absl::StrCat("model.package.units[", u, "].graph")});
  }
  for (Finding& each : CheckParamCount(params, kExportAgain)) findings.push_back(std::move(each));
  if (findings.empty()) CheckHeads(package, &findings);
  return findings;
}

Findings ChecksNames(const Facts& f) {
  const DescribedUnits units = UnitsOf(f);
  Findings findings = CheckNames(units);
  for (size_t u = 0; u < units.size() && findings.empty(); ++u) {
    for (const DescribedParam& param : units[u].params) {
      const std::string full = units[u].FullName(param);
      if (!absl::StartsWith(full, ".") && !absl::EndsWith(full, ".")) continue;
      findings.push_back(
          {absl::StrCat("'", full, "' starts or ends with a dot"), kExportAgain, units[u].params_field});
    }
  }
  return findings;
}

bool IsNumber(double value, double most = kMaxFlops) {
  return std::isfinite(value) && value >= 0 && value <= most;
}

// Numbers of one graph, by field.
Findings CheckNumbers(const v1::Package& package, int g) {
  const v1::Package::Graph& graph = package.graphs(g);
  const std::string graph_name = GraphName(package, g);
  std::string before, owner = graph_name;
  Findings findings;
  const auto bytes = [&](const char* name, int64_t value, int64_t least = 0) {
    AddFindings(CheckRange(value, least, kMaxBytes, absl::StrCat(name, " of ", owner), kExportAgain),
                GraphField(g, before + name), &findings);
  };
  const auto number = [&](const char* name, double value, double most = kMaxFlops) {
    if (IsNumber(value, most)) return;
    findings.push_back({absl::StrCat(name, " of ", owner, " is ", value, " and must be from 0 to ", most),
                        kExportAgain, GraphField(g, before + name)});
  };
  bytes("output_bytes", graph.output_bytes(), graph.has_head() ? 0 : 1);
  bytes("forward_bytes", graph.forward_bytes());
  bytes("backward_bytes", graph.backward_bytes());
  bytes("evaluation_workspace_bytes", graph.evaluation_workspace_bytes());
  number("forward_flops", graph.forward_flops());
  number("attention_flops", graph.attention_flops());
  for (int v = 0; v < std::min(graph.variants_size(), kMaxVariants); ++v) {
    before = absl::StrCat("variants[", v, "].");
    owner = absl::StrCat("variant ", ShortEnumName(graph.variants(v).recompute()), " of ", graph_name);
    bytes("saved_bytes", graph.variants(v).saved_bytes());
    bytes("workspace_bytes", graph.variants(v).workspace_bytes());
    number("recomputed_flops", graph.variants(v).recomputed_flops());
    number("forward_seconds", graph.variants(v).forward_seconds(), kMaxSeconds);
    number("backward_seconds", graph.variants(v).backward_seconds(), kMaxSeconds);
  }
  return findings;
}

Findings ChecksNumbers(const Facts& f) {
  if (!IsConnected(f)) return {};
  Findings findings;
  const double rate = PackageOf(f).matmul_flops();
  if (!IsNumber(rate)) {
    findings.push_back({absl::StrCat("matmul_flops is ", rate, " and must be from 0 to ", kMaxFlops),
                        kExportAgain, "model.package.matmul_flops"});
  }
  for (int g = 0; g < PackageOf(f).graphs_size(); ++g) {
    const v1::Package::Graph& graph = PackageOf(f).graphs(g);
    for (Finding& each : CheckNumbers(PackageOf(f), g)) findings.push_back(std::move(each));
    if (graph.has_head() || IsComputeType(graph.output_type())) continue;
    findings.push_back({absl::StrCat("hidden states of ", GraphName(PackageOf(f), g), " cannot be ",
                                     ShortEnumName(graph.output_type())),
                        kExportAgain, GraphField(g, "output_type")});
  }
  return findings;
}

// A measured time replaces the prediction from FLOPs. A unit without trainable parameters may have no
// backward.
Findings ChecksTimes(const Facts& f) {
  if (!IsConnected(f) || !ChecksNumbers(f).empty()) return {};
  const bool measured = PackageOf(f).matmul_flops() > 0;
  for (int g = 0; g < PackageOf(f).graphs_size(); ++g) {
    const v1::Package::Graph& graph = PackageOf(f).graphs(g);
    const bool trained = std::any_of(graph.params().begin(), graph.params().end(),
                                     [](const v1::Package::Param& param) { return !param.frozen(); });
    for (int v = 0; v < std::min(graph.variants_size(), kMaxVariants); ++v) {
      const auto field = [&](const char* name, double seconds, bool needed) -> Findings {
        if (measured ? seconds > 0 || !needed : seconds == 0) return {};
        return {{absl::StrCat(name, " of variant ", ShortEnumName(graph.variants(v).recompute()), " of ",
                              GraphName(PackageOf(f), g), " is ", seconds, ", and matmul_flops is ",
                              PackageOf(f).matmul_flops(), " (want times of all calls, or none)"),
                 kExportAgain, GraphField(g, absl::StrCat("variants[", v, "].", name))}};
      };
      Findings found = field("forward_seconds", graph.variants(v).forward_seconds(), true);
      if (found.empty()) found = field("backward_seconds", graph.variants(v).backward_seconds(), trained);
      if (!found.empty()) return found;
    }
  }
  return {};
}

Findings ChecksVariants(const Facts& f) {
  if (!IsConnected(f)) return {};
  Findings findings;
  for (int g = 0; g < PackageOf(f).graphs_size(); ++g) {
    std::set<int> kinds;
    bool is_known = true;
    for (const v1::Package::Variant& variant : PackageOf(f).graphs(g).variants()) {
      is_known &=
          v1::Recompute_IsValid(variant.recompute()) && variant.recompute() != v1::RECOMPUTE_UNSPECIFIED;
      is_known &= kinds.insert(variant.recompute()).second;
    }
    if (is_known && kinds.count(v1::RECOMPUTE_NONE) > 0) continue;
    findings.push_back({absl::StrCat("the variants of ", GraphName(PackageOf(f), g),
                                     " must be different activation checkpointing modes, with none"),
                        kExportAgain, GraphField(g, "variants")});
  }
  return findings;
}

// In the order in which the last unit binds parameters: its own, then those of the unit it is tied to.
std::vector<DescribedParam> BoundByHead(const DescribedUnits& units) {
  std::vector<DescribedParam> bound = units.back().params;
  for (const DescribedUnit& unit : units) {
    if (!units.back().tied_to.empty() && unit.name == units.back().tied_to)
      bound.insert(bound.end(), unit.params.begin(), unit.params.end());
  }
  return bound;
}

Findings ChecksHead(const Facts& f) {
  const DescribedUnits units = UnitsOf(f);
  if (units.empty() || !f.IsValid({"model.package"})) return {};
  const int64_t graph = PackageOf(f).units().rbegin()->graph(), vocab = PackageOf(f).vocab_size();
  const v1::Package::Head& head = PackageOf(f).graphs(static_cast<int>(graph)).head();
  const std::vector<DescribedParam> bound = BoundByHead(units);
  const auto exists = [&](int64_t index) { return index >= 0 && index < static_cast<int64_t>(bound.size()); };
  const auto shape_of = [&](int64_t index) {
    return exists(index) ? std::vector<int64_t>(bound[index].shape->begin(), bound[index].shape->end())
                         : std::vector<int64_t>();
  };
  const auto name_of = [&](int64_t index) {
    return exists(index) ? "parameter " + *bound[index].name : absl::StrCat("unknown parameter ", index);
  };
  const std::vector<int64_t> weight = shape_of(head.weight());
  Findings findings;
  const auto refuse = [&](const char* name, const std::string& why) {
    findings.push_back({why, kExportAgain, GraphField(graph, absl::StrCat("head.", name))});
  };
  if (weight.size() != 2 || weight[0] != vocab || weight[1] > kMaxHidden)
    refuse("weight", absl::StrCat(name_of(head.weight()), " has shape [", absl::StrJoin(weight, ", "),
                                  "] (want [", vocab, ", hidden size of at most 2^17])"));
  if (head.has_bias() && shape_of(head.bias()) != std::vector<int64_t>{vocab})
    refuse("bias", absl::StrCat(name_of(head.bias()), " is not a vector of ", vocab, " elements"));
  if (head.has_logit_scale() && !(std::isfinite(head.logit_scale()) && head.logit_scale() != 0))
    refuse("logit_scale",
           absl::StrCat("logit_scale is ", head.logit_scale(), " and must be finite and not 0"));
  if (!(std::isfinite(head.soft_cap()) && head.soft_cap() >= 0))
    refuse("soft_cap", absl::StrCat("soft_cap is ", head.soft_cap(), " and must be finite and not negative"));
  return findings;
}

// A value of the job that the package fixes. `flag`: of fsdpctl model export.
Findings MustEqual(const Facts& f, const char* field, const std::string& got, const std::string& want,
                   const char* flag) {
  if (!IsSound(f) || !f.IsValid({field}) || got == want) return {};
  return {{absl::StrCat("the package was exported for another value (got ", got, ", want ", want, ")"),
           absl::StrCat("leave the field out, or export the package again with ", flag, " ", got)}};
}

// Layers whose graph lacks the variant would run another one.
Findings ChecksRecompute(const Facts& f) {
  const v1::Recompute wanted = f.job.fsdp().recompute();
  if (!IsSound(f) || !f.IsValid({"fsdp.recompute"}) || wanted == v1::RECOMPUTE_UNSPECIFIED) return {};
  const v1::Package& package = PackageOf(f);
  for (int u = 1; u + 1 < package.units_size(); ++u) {
    std::vector<std::string> modes;
    bool has = false;
    for (const v1::Package::Variant& variant :
         package.graphs(static_cast<int>(package.units(u).graph())).variants()) {
      has |= variant.recompute() == wanted;
      modes.push_back(ShortEnumName(variant.recompute()));
    }
    if (has) continue;
    return {
        {absl::StrCat("unit ", ShownName(package.units(u).name()), " of the package lacks this mode (got ",
                      ShortEnumName(wanted), ", want ", absl::StrJoin(modes, " or "), ")"),
         "leave the field out, or export the package again with the mode in --recompute"}};
  }
  return {};
}

// Stages exchange hidden states in buffers of one size.
Findings PassesOnOneSize(const Facts& f) {
  if (!f.job.model().has_package() || !f.ModelIsKnown() || !f.IsValid({"parallel.pipeline"})) return {};
  if (f.job.parallel().pipeline() <= 1) return {};
  const v1::Package& package = PackageOf(f);
  const auto graph_of = [&](int unit) -> const v1::Package::Graph& {
    return package.graphs(static_cast<int>(package.units(unit).graph()));
  };
  for (int u = 1; u + 1 < package.units_size(); ++u) {
    const v1::Package::Graph &first = graph_of(0), &graph = graph_of(u);
    if (graph.output_bytes() == first.output_bytes() && graph.output_type() == first.output_type()) continue;
    return {{absl::StrCat("unit ", package.units(u).name(), " passes on ", graph.output_bytes(), " bytes of ",
                          ShortEnumName(graph.output_type()), ", and unit ", package.units(0).name(), " ",
                          first.output_bytes(), " bytes of ", ShortEnumName(first.output_type())),
             "leave parallel.pipeline out; FSDP shards the parameters anyway"}};
  }
  return {};
}

const Rule kRules[] = {
    {"package_path_absolute", kError, "model.package.path", "the package's path must be absolute, without ..",
     [](const Facts& f) -> Findings {
       if (!f.job.model().has_package()) return {};
       if (absl::StartsWith(PackageOf(f).path(), "/")) return CheckPath(PackageOf(f).path());
       return {
           {absl::StrCat("'", PackageOf(f).path(), "' is not the absolute path of a package on the nodes"),
            "write path: /where/the/nodes/have/it.fsdpd"}};
     }},
    {"package_unresolved", kError, "model.package", "the package must be read by the client before submit",
     [](const Facts& f) -> Findings {
       if (!f.job.model().has_package() || IsRead(f) || !f.IsValid({"model.package"})) return {};
       return {{absl::StrCat("'", PackageOf(f).path(), "' is not on this machine, so its units are unknown"),
                "submit with fsdpctl on a machine that has the package at this path"}};
     }},
    {"package_digest", kError, "model.package.digest", "the digest must be a SHA-256", ChecksDigest},
    {"package_shape", kError, "model.package.vocab_size",
     "vocabulary, sequence length, micro-batch and buffers of a package must be in range", ChecksShape},
    {"package_types", kError, "model.package.compute",
     "a package must compute in fp32, bf16 or fp16, on cpu or cuda", ChecksTypes},
    {"package_units", kError, "model.package.units",
     "a package must have 2 to 1026 units, each with a graph, and one head in the last", ChecksUnits},
    {"package_names", kError, "model.package.units",
     "names of units, modules and parameters must be valid, and full names unique", ChecksNames},
    {"package_params", kError, "model.package.units",
     "parameter shapes must be positive, with at most 2^40 elements in total",
     [](const Facts& f) { return CheckParams(UnitsOf(f), "model.package.units", kExportAgain); }},
    {"package_tied", kError, "model.package.units",
     "a unit can be tied only to an earlier unit, which can lend once",
     [](const Facts& f) { return CheckTiedUnits(UnitsOf(f)); }},
    {"package_numbers", kError, "model.package.graphs", "sizes and costs of graphs must be in range",
     ChecksNumbers},
    {"package_times", kError, "model.package.graphs",
     "either all calls of a package have measured times, or none", ChecksTimes},
    {"package_variants", kError, "model.package.graphs",
     "a graph must have different activation checkpointing modes, including none", ChecksVariants},
    {"package_head", kError, "model.package.graphs",
     "the head must name its weight, [vocab_size, hidden size], and finite factors", ChecksHead},
    {"package_sequence_length", kError, "data.sequence_length", "sequence_length must be that of the package",
     [](const Facts& f) {
       return MustEqual(f, "data.sequence_length", absl::StrCat(f.job.data().sequence_length()),
                        absl::StrCat(PackageOf(f).sequence_length()), "--sequence-length");
     }},
    {"package_micro_batch", kError, "train.micro_batch", "micro_batch must be that of the package",
     [](const Facts& f) {
       return MustEqual(f, "train.micro_batch", absl::StrCat(f.job.train().micro_batch()),
                        absl::StrCat(PackageOf(f).micro_batch_size()), "--micro-batch-size");
     }},
    {"package_device", kError, "resources.device", "the device must be that of the package",
     [](const Facts& f) {
       return MustEqual(f, "resources.device", ShortEnumName(f.job.resources().device()),
                        ShortEnumName(PackageOf(f).device()), "--device");
     }},
    {"package_compute", kError, "precision.compute", "the compute type must be that of the package",
     [](const Facts& f) {
       // fp8_needs_llama reports fp8.
       if (f.job.precision().compute() == v1::DTYPE_FP8) return Findings();
       return MustEqual(f, "precision.compute", ShortEnumName(f.job.precision().compute()),
                        ShortEnumName(PackageOf(f).compute()), "--dtype");
     }},
    {"package_recompute", kError, "fsdp.recompute",
     "the package must have the activation checkpointing mode of fsdp.recompute", ChecksRecompute},
    {"package_pipeline", kError, "parallel.pipeline",
     "with parallel.pipeline, all units must pass on hidden states of one size and type", PassesOnOneSize},
};

}  // namespace

absl::Span<const Rule> PackageRules() { return kRules; }

}  // namespace fsdpd
