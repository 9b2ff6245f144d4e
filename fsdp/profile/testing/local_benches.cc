#include "fsdp/profile/testing/local_benches.h"

#include <thread>
#include <utility>
#include <vector>

namespace fsdpd {

RankBench LocalBench(ConnectedMesh mesh) {
  RankBench bench;
  bench.mesh = std::move(mesh);
  bench.compute = MakeThreadLane();
  bench.communication = MakeThreadLane();
  bench.runs = 3;
  return bench;
}

void OnLocalBenches(int ranks, const std::function<void(RankBench*)>& body) {
  std::vector<std::thread> threads;
  for (ConnectedMesh& mesh : MakeLocalMesh(Mesh::DataParallel(1, ranks))) {
    threads.emplace_back([&body, bench = LocalBench(std::move(mesh))]() mutable { body(&bench); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fsdpd
