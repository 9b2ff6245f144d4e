// What travels where ranks have a layer's experts among them, and for how many rows each has room.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fsdpd {

// Each token once to every rank, and what its experts there came to once from each; else a row for each of
// its experts. With as many ranks as a token has experts that is as much, and rows take about twice what they
// are: each two ranks have room for the most that any two need.
constexpr bool TokensTravel(int64_t ranks, int64_t per_token) { return ranks > 1 && ranks <= 2 * per_token; }

// There is room for so many times the rows that there are where experts get equally many: where tokens travel
// of all for a rank's experts, and where rows do of each rank's for another's.
constexpr double kExpertCapacity = 1.25;
// Where it was too little: so many times as much, again and again.
constexpr double kExpertCapacityGrowth = 1.5;

// Of `choices`, those of one rank's tokens, for which there is `room`; at most as many as there can be.
inline int64_t RowsOfRoom(double room, int64_t choices, int64_t per_token, int64_t ranks, int64_t experts) {
  const int64_t most = ranks * (choices / per_token) * std::min(per_token, experts);
  return std::min(most, static_cast<int64_t>(room * static_cast<double>(choices)) + 1);
}
inline int64_t RowsOfPart(double room, int64_t choices, int64_t per_token, int64_t ranks, int64_t experts) {
  const int64_t most = choices / per_token * std::min(per_token, experts);
  const double even = static_cast<double>(choices) / static_cast<double>(ranks);
  return std::min(most, static_cast<int64_t>(room * even) + 1);
}

}  // namespace fsdpd
