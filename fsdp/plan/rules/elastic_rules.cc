// Rules of restart.elastic.
#include <absl/strings/str_cat.h>

#include <string>

#include "fsdp/plan/rules/rule_table.h"
#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/spec/smaller_worlds.h"

namespace fsdpd {
namespace {

constexpr int64_t kLongestWaitSeconds = 86400;

const v1::Elastic& ElasticOf(const Facts& f) { return f.job.restart().elastic(); }
bool IsElastic(const Facts& f) { return f.job.restart().has_elastic(); }

bool IsAccepted(const Facts& f, const World& world) { return !HasErrors(CheckJob(InWorld(f.job, world))); }

// 0: no smaller world size is possible.
int64_t RanksOfSmaller(const Facts& f, const v1::JobSpec& job) {
  for (const World& world : SmallerWorlds(job)) {
    if (IsAccepted(f, world)) return world.ranks();
  }
  return 0;
}

// Why no smaller world size is possible: min_ranks, parallel or the batch.
std::string HowToShrink(const Facts& f) {
  v1::JobSpec any = f.job;
  any.mutable_restart()->mutable_elastic()->set_min_ranks(1);
  if (const int64_t ranks = RanksOfSmaller(f, any); ranks > 0)
    return absl::StrCat("write min_ranks: ", ranks, " or less, or leave elastic out");
  if (const int64_t per_sample = RanksPerSample(f.job); per_sample >= f.world()) {
    return absl::StrCat("the axes of parallel use all ", per_sample,
                        " ranks: write smaller ones, or leave elastic out");
  }
  return "write a global_batch that divides over fewer ranks, or leave elastic out";
}

const Rule kRules[] = {
    {"elastic_min_ranks_range", kError, "restart.elastic.min_ranks",
     "min_ranks must be at least 1 and below nodes x ranks_per_node",
     [](const Facts& f) -> Findings {
       if (!IsElastic(f)) return {};
       const char* fix = "write the smallest number of ranks that the job can continue with";
       if (!ElasticOf(f).has_min_ranks()) return Missing("min_ranks", fix);
       const int64_t least = ElasticOf(f).min_ranks();
       if (least < 1) return {{absl::StrCat("min_ranks is ", least, " and must be 1 or more"), fix}};
       if (!f.WorldIsKnown() || least < f.world()) return {};
       return {{absl::StrCat("min_ranks is ", least, ", which is not below the job's ", f.world(), " ranks"),
                f.world() > 1 ? "write fewer, or leave elastic out"
                              : "leave elastic out: a job of one rank cannot shrink"}};
     }},
    {"elastic_wait_range", kError, "restart.elastic.wait_seconds", "wait_seconds must be between 0 and 86400",
     [](const Facts& f) -> Findings {
       const int64_t seconds = ElasticOf(f).wait_seconds();
       if (seconds >= 0 && seconds <= kLongestWaitSeconds) return {};
       return {
           {absl::StrCat("wait_seconds is ", seconds),
            absl::StrCat("write 0 for no wait, up to ", kLongestWaitSeconds, ", or omit it (default: 60)")}};
     }},
    {"elastic_without_checkpoint", kError, "restart.elastic", "restart.elastic requires periodic checkpoints",
     When{[](const Facts& f) {
            return IsElastic(f) && f.IsValid({"checkpoint"}) && !SavesBetween(f.job.checkpoint());
          },
          "the job writes no checkpoint between steps from which an elastic restart could resume",
          "write checkpoint: {dir: DIR, every_steps: N}, or leave elastic out"}},
    {"elastic_nothing_smaller", kError, "restart.elastic.min_ranks",
     "some world size from min_ranks to below the full one must be able to run the job",
     [](const Facts& f) -> Findings {
       // Not checked while other errors exist, because every world size would then be rejected.
       if (!IsElastic(f) || !f.ModelIsKnown() || !f.AllValid()) return {};
       if (RanksOfSmaller(f, f.job) > 0) return {};
       return {
           {absl::StrCat("the global batch (", f.global_batch(), ", ", f.job.train().micro_batch(),
                         " per micro-batch) and the axes of parallel do not divide over any world size from ",
                         ElasticOf(f).min_ranks(), " to ", f.world() - 1, " ranks"),
            HowToShrink(f)}};
     }},
};

}  // namespace

absl::Span<const Rule> ElasticRules() { return kRules; }

}  // namespace fsdpd
