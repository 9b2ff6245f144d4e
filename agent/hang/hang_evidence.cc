#include "agent/hang/hang_evidence.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <stdio.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "agent/hang/thread_stacks.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr int kMaxWriters = 16;  // Twice the ranks of a typical node.

std::atomic<int>* Writers() {
  // Leaked: detached threads may outlive static objects.
  static auto* const writers = new std::atomic<int>(0);
  return writers;
}

bool Write(const std::string& path, pid_t pid, const std::string& text) {
  // Renamed when complete, so that readers never see a partial file.
  const std::string begun = path + ".part";
  std::ofstream file(begun, std::ios::binary | std::ios::trunc);
  file << text << std::flush << ThreadsText(pid);
  file.close();
  if (file && rename(begun.c_str(), path.c_str()) == 0) return true;
  LogWarning("hang evidence was not written path=%s", path);
  unlink(begun.c_str());
  return false;
}

}  // namespace

std::string EvidencePath(const std::string& log_path) {
  return absl::StrCat(absl::StripSuffix(log_path, ".log"), kEvidenceSuffix);
}

Evidence WriteEvidence(const std::string& path, pid_t pid, const std::string& text) {
  if (Writers()->fetch_add(1) >= kMaxWriters) {
    Writers()->fetch_sub(1);
    return nullptr;
  }
  const auto evidence = std::make_shared<std::atomic<EvidenceState>>(EvidenceState::kBegun);
  std::thread([path, pid, text, evidence] {
    *evidence = Write(path, pid, text) ? EvidenceState::kWritten : EvidenceState::kFailed;
    Writers()->fetch_sub(1);
  }).detach();
  return evidence;
}

}  // namespace fsdpd
