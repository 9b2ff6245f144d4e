#include "fsdp/plan/program/offsets.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>

namespace fsdpd {
namespace {

constexpr int kRounds = 32;     // Per order; Llama models do not improve with more.
constexpr int kShuffles = 720;  // 6! = all orders of six rows.
// Limits shuffles x conflicting pairs to about 50 ms; an 80-layer model needs a quarter of it.
constexpr int64_t kShuffleWork = 4000000;
constexpr size_t kBoundStarts = 128;

struct Conflicts {
  std::vector<std::vector<bool>> meets;  // Per pair of buffers: they overlap in time and may not share bytes.
  std::vector<std::vector<int>> with;    // Per buffer: the buffers that it conflicts with.
  std::vector<int> first_begin;          // Per buffer: where it is first occupied.
  int64_t live_peak_bytes = 0;
};

// Sweep over time: a buffer that begins conflicts with all that have not ended.
Conflicts FindConflicts(const std::vector<int64_t>& bytes, std::vector<Occupancy> occupied) {
  std::sort(occupied.begin(), occupied.end(), [](const Occupancy& a, const Occupancy& b) {
    return std::tie(a.begin, a.buffer) < std::tie(b.begin, b.buffer);
  });
  const size_t count = bytes.size();
  Conflicts conflicts{std::vector<std::vector<bool>>(count, std::vector<bool>(count)),
                      std::vector<std::vector<int>>(count), std::vector<int>(count, -1), 0};
  std::vector<Occupancy> active;
  int64_t active_bytes = 0;
  for (const Occupancy& next : occupied) {
    const auto ended = std::partition(active.begin(), active.end(),
                                      [&](const Occupancy& other) { return other.end >= next.begin; });
    for (auto it = ended; it != active.end(); ++it) active_bytes -= bytes[it->buffer];
    active.erase(ended, active.end());
    for (const Occupancy& other : active) {
      if (conflicts.meets[next.buffer][other.buffer]) continue;
      conflicts.meets[next.buffer][other.buffer] = conflicts.meets[other.buffer][next.buffer] = true;
      conflicts.with[next.buffer].push_back(other.buffer);
      conflicts.with[other.buffer].push_back(next.buffer);
    }
    active.push_back(next);
    active_bytes += bytes[next.buffer];
    conflicts.live_peak_bytes = std::max(conflicts.live_peak_bytes, active_bytes);
    if (conflicts.first_begin[next.buffer] < 0) conflicts.first_begin[next.buffer] = next.begin;
  }
  return conflicts;
}

// Pairwise conflicting buffers need disjoint bytes even if they are never all live together. Finds such a
// clique greedily from each of the largest buffers; a larger one may exist.
int64_t BoundBytes(const std::vector<int>& by_size, const std::vector<int64_t>& bytes,
                   const Conflicts& conflicts) {
  int64_t bound = conflicts.live_peak_bytes;
  const size_t starts = std::min(by_size.size(), kBoundStarts);
  for (size_t start = 0; start < starts; ++start) {
    std::vector<int> group = {by_size[start]};
    int64_t sum = bytes[by_size[start]];
    for (const int candidate : by_size) {
      const std::vector<bool>& meets = conflicts.meets[candidate];
      if (!std::all_of(group.begin(), group.end(), [&](int other) { return meets[other]; })) continue;
      group.push_back(candidate);
      sum += bytes[candidate];
    }
    bound = std::max(bound, sum);
  }
  return bound;
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// First fit: the lowest gap between conflicting buffers that already have an offset. `taken`: scratch memory,
// reused between calls.
int64_t LowestGap(int64_t bytes, const std::vector<int>& neighbors, const std::vector<int64_t>& all_bytes,
                  const std::vector<int64_t>& offset, Ranges* taken) {
  taken->clear();
  for (const int other : neighbors) {
    if (offset[other] >= 0) taken->emplace_back(offset[other], offset[other] + all_bytes[other]);
  }
  std::sort(taken->begin(), taken->end());
  int64_t at = 0;
  for (const auto& [begin, end] : *taken) {
    if (begin - at >= bytes) break;
    at = std::max(at, end);
  }
  return at;
}

// Aborts if the arena reaches `limit`; some buffers then have no offset.
Offsets FirstFit(const std::vector<int>& order, const std::vector<int64_t>& bytes, const Conflicts& conflicts,
                 int64_t limit) {
  Offsets result{std::vector<int64_t>(bytes.size(), -1), 0, 0, 0};
  Ranges taken;
  for (const int buffer : order) {
    const int64_t at = LowestGap(bytes[buffer], conflicts.with[buffer], bytes, result.offset, &taken);
    result.offset[buffer] = at;
    result.arena_bytes = std::max(result.arena_bytes, at + bytes[buffer]);
    if (result.arena_bytes >= limit) break;
  }
  return result;
}

// Moves the buffer that determined the arena's end to the front for the next round.
void HighestFirst(const Offsets& offsets, const std::vector<int64_t>& bytes, std::vector<int>* order) {
  const auto highest = std::max_element(order->begin(), order->end(), [&](int a, int b) {
    return offsets.offset[a] + bytes[a] < offsets.offset[b] + bytes[b];
  });
  std::rotate(order->begin(), highest, highest + 1);
}

bool IsNearEnough(const Offsets& offsets, int64_t bound) {
  return offsets.arena_bytes <= bound + bound / 100;
}

// Buffers of equal size without conflicts form a row (parameters of even layers, gradients of odd layers,
// ...). The arena size depends on the stacking order of whole rows.
std::vector<std::vector<int>> Rows(const std::vector<int>& by_size, const std::vector<int64_t>& bytes,
                                   const Conflicts& conflicts) {
  std::vector<std::vector<int>> rows;
  std::vector<int> row_of(bytes.size(), -1);
  for (const int buffer : by_size) {
    std::set<int> taken;
    for (const int other : conflicts.with[buffer]) taken.insert(row_of[other]);
    int row = 0;
    while (row < static_cast<int>(rows.size()) &&
           (bytes[rows[row].front()] != bytes[buffer] || taken.count(row) > 0)) {
      ++row;
    }
    if (row == static_cast<int>(rows.size())) rows.emplace_back();
    rows[row].push_back(buffer);
    row_of[buffer] = row;
  }
  return rows;
}

// Tries orders of the rows. Fixed seed and a standardized generator, so that every rank gets the same result.
Offsets ShuffleRows(Offsets best, const std::vector<int>& by_size, const std::vector<int64_t>& bytes,
                    const Conflicts& conflicts, int64_t bound) {
  std::vector<std::vector<int>> rows = Rows(by_size, bytes, conflicts);
  int64_t meetings = 1;
  for (const std::vector<int>& with : conflicts.with) meetings += static_cast<int64_t>(with.size());
  const int64_t shuffles = std::min<int64_t>(kShuffles, kShuffleWork / meetings);
  std::mt19937 random(1);
  for (int64_t shuffle = 0; shuffle < shuffles && !IsNearEnough(best, bound); ++shuffle) {
    for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random() % i]);
    std::vector<int> order;
    for (const std::vector<int>& row : rows) order.insert(order.end(), row.begin(), row.end());
    Offsets offsets = FirstFit(order, bytes, conflicts, best.arena_bytes);
    if (offsets.arena_bytes < best.arena_bytes) best = std::move(offsets);
  }
  return best;
}

std::vector<int64_t> Rounded(const std::vector<int64_t>& bytes) {
  std::vector<int64_t> rounded;
  for (const int64_t size : bytes) {
    rounded.push_back((size + kBufferAlignBytes - 1) / kBufferAlignBytes * kBufferAlignBytes);
  }
  return rounded;
}

// No buffer here is occupied for the whole step.
Offsets Search(const std::vector<int64_t>& bytes, const std::vector<Occupancy>& occupied) {
  const Conflicts conflicts = FindConflicts(bytes, occupied);
  std::vector<int> by_time(bytes.size());
  std::iota(by_time.begin(), by_time.end(), 0);
  std::stable_sort(by_time.begin(), by_time.end(),
                   [&](int a, int b) { return conflicts.first_begin[a] < conflicts.first_begin[b]; });
  std::vector<int> by_size = by_time;
  std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) { return bytes[a] > bytes[b]; });
  const int64_t bound = BoundBytes(by_size, bytes, conflicts);
  Offsets best;
  for (const std::vector<int>& start : {by_size, by_time}) {
    std::vector<int> order = start;
    for (int round = 0; round < kRounds && (best.offset.empty() || !IsNearEnough(best, bound)); ++round) {
      Offsets offsets = FirstFit(order, bytes, conflicts, std::numeric_limits<int64_t>::max());
      HighestFirst(offsets, bytes, &order);
      if (best.offset.empty() || offsets.arena_bytes < best.arena_bytes) best = std::move(offsets);
    }
  }
  best = ShuffleRows(std::move(best), by_size, bytes, conflicts, bound);
  best.live_peak_bytes = conflicts.live_peak_bytes;
  best.bound_bytes = bound;
  return best;
}

// Buffers that are always occupied go to the bottom: they share no bytes and would only slow the search down.
Offsets Assign(const std::vector<int64_t>& bytes, const std::vector<Occupancy>& occupied) {
  const std::vector<int64_t> rounded = Rounded(bytes);
  std::vector<bool> always(bytes.size(), false);
  for (const Occupancy& o : occupied) always[o.buffer] = always[o.buffer] || o.end == kAlways;
  Offsets offsets{std::vector<int64_t>(bytes.size(), 0), 0, 0, 0};
  std::vector<int> others, number(bytes.size(), -1);
  int64_t bottom = 0;
  for (size_t b = 0; b < bytes.size(); ++b) {
    if (always[b]) {
      offsets.offset[b] = bottom;
      bottom += rounded[b];
    } else {
      number[b] = static_cast<int>(others.size());
      others.push_back(static_cast<int>(b));
    }
  }
  std::vector<Occupancy> now_and_then;
  for (const Occupancy& o : occupied) {
    if (!always[o.buffer]) now_and_then.push_back({number[o.buffer], o.begin, o.end});
  }
  std::vector<int64_t> other_bytes;
  for (const int b : others) other_bytes.push_back(rounded[b]);
  const Offsets found = others.empty() ? Offsets() : Search(other_bytes, now_and_then);
  for (size_t i = 0; i < others.size(); ++i) offsets.offset[others[i]] = bottom + found.offset[i];
  offsets.arena_bytes = bottom + found.arena_bytes;
  offsets.live_peak_bytes = bottom + found.live_peak_bytes;
  offsets.bound_bytes = bottom + found.bound_bytes;
  return offsets;
}

// Buffers do not depend on recompute or offload, so a caller that tries several choices and then plans one of
// them asks for the same allocation repeatedly.
constexpr size_t kRemembered = 16;

struct Assigned {
  std::vector<int64_t> bytes;
  std::vector<Occupancy> occupied;
  Offsets offsets;
};

}  // namespace

int64_t LivePeakBytes(const std::vector<int64_t>& bytes, std::vector<Occupancy> occupied) {
  return FindConflicts(Rounded(bytes), std::move(occupied)).live_peak_bytes;
}

Offsets AssignOffsets(const std::vector<int64_t>& bytes, std::vector<Occupancy> occupied) {
  thread_local std::deque<Assigned> recent;
  const auto known = std::find_if(recent.begin(), recent.end(), [&](const Assigned& each) {
    return each.bytes == bytes && each.occupied == occupied;
  });
  if (known != recent.end()) return known->offsets;
  Offsets offsets = Assign(bytes, occupied);
  recent.push_front({bytes, std::move(occupied), offsets});
  if (recent.size() > kRemembered) recent.pop_back();
  return offsets;
}

}  // namespace fsdpd
