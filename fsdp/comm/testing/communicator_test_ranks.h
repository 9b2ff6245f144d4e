// Test helper: ranks as threads.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

using Members = std::vector<std::unique_ptr<Communicator>>;

// Options of the group "test", over loopback.
inline CommunicatorOptions Options(int rank, int size) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.name = "test";
  return options;
}

// Runs `body` once per rank, each on its own thread.
inline void OnEveryRank(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fsdpd
