#include "coordinator/attempt/rank_positions.h"

#include <algorithm>

namespace fsdpd {

bool TakePosition(int rank, const std::string& where, v1::Job* job) {
  if (where.empty() || where.size() > kMaxStandBytes) return false;
  auto* stands = job->mutable_positions();
  bool left = false;  // The rank had a previous position.
  for (int i = stands->size() - 1; i >= 0; --i) {
    auto* ranks = stands->Mutable(i)->mutable_ranks();
    const auto own = std::remove(ranks->begin(), ranks->end(), rank);
    left |= own != ranks->end();
    ranks->erase(own, ranks->end());
    if (ranks->empty()) stands->DeleteSubrange(i, 1);
  }
  auto stand = std::find_if(stands->begin(), stands->end(),
                            [&](const v1::Job::Position& each) { return each.position() == where; });
  if (stand == stands->end()) {
    if (stands->size() >= kMaxPositions) return left;
    stands->Add()->set_position(where);
    stand = stands->end() - 1;
  }
  auto* ranks = stand->mutable_ranks();
  const auto place = std::lower_bound(ranks->begin(), ranks->end(), rank) - ranks->begin();
  ranks->Add(rank);
  std::rotate(ranks->begin() + place, ranks->end() - 1, ranks->end());
  return true;
}

}  // namespace fsdpd
