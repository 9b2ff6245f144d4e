#include "agent/hang/thread_stacks.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>
#include <dirent.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <vector>

#include "base/process/text_files.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxThreads = 256;
// From the top of the stack: deeper frames are those that started the thread.
constexpr size_t kStackBytes = 16 << 10;
constexpr size_t kMaxCalls = 32;

std::string ReadStripped(const std::string& path) {
  return std::string(absl::StripAsciiWhitespace(ReadText(path)));
}

struct CodeRange {
  uint64_t begin = 0, end = 0;
  uint64_t base = 0;  // Load address of the module.
  std::string module;
};

// Executable mappings of files, ascending.
std::vector<CodeRange> ReadCode(pid_t pid) {
  std::vector<CodeRange> code;
  std::map<std::string, uint64_t> bases;
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  for (std::string line; std::getline(maps, line);) {
    // BEGIN-END RIGHTS OFFSET DEVICE INODE PATH
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(' ', 5));
    if (fields.size() < 6) continue;
    const std::string module(absl::StripAsciiWhitespace(fields[5]));
    const std::pair<std::string, std::string> range = absl::StrSplit(fields[0], '-');
    CodeRange each;
    each.module = module;
    if (module.empty() || !absl::SimpleHexAtoi(range.first, &each.begin) ||
        !absl::SimpleHexAtoi(range.second, &each.end))
      continue;
    each.base = bases.emplace(module, each.begin).first->second;
    if (fields[1].size() > 2 && fields[1][2] == 'x') code.push_back(each);
  }
  return code;
}

// MODULE+0xOFFSET of the address; "" if it is not in code.
std::string NameOfCode(const std::vector<CodeRange>& code, uint64_t address) {
  const auto after = std::upper_bound(code.begin(), code.end(), address,
                                      [](uint64_t at, const CodeRange& each) { return at < each.begin; });
  if (after == code.begin() || address >= (after - 1)->end) return "";
  const CodeRange& range = *(after - 1);
  return absl::StrFormat("%s+0x%x", range.module, address - range.base);
}

std::vector<std::string> CallsOnStack(pid_t pid, const std::vector<CodeRange>& code, uint64_t stack) {
  std::vector<uint64_t> words(kStackBytes / sizeof(uint64_t));
  iovec here = {words.data(), kStackBytes};
  // The read fails at an unmapped page: retry with shorter lengths.
  iovec there = {reinterpret_cast<void*>(stack), kStackBytes};
  ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
  for (size_t bytes = 4096 - stack % 4096; n < 0 && bytes >= sizeof(uint64_t); bytes /= 2) {
    there.iov_len = bytes;
    n = process_vm_readv(pid, &here, 1, &there, 1, 0);
  }
  words.resize(n < 0 ? 0 : static_cast<size_t>(n) / sizeof(uint64_t));
  std::vector<std::string> calls;
  for (const uint64_t word : words) {
    const std::string name = NameOfCode(code, word);
    if (!name.empty() && calls.size() < kMaxCalls) calls.push_back(name);
  }
  return calls;
}

std::string ThreadText(pid_t pid, pid_t tid, const std::vector<CodeRange>& code) {
  const std::string directory = absl::StrCat("/proc/", pid, "/task/", tid, "/");
  const std::string stat = ReadStripped(directory + "stat");
  const size_t close = stat.rfind(") ");
  const std::string call =
      ReadStripped(directory + "syscall");  // "running", or NUMBER ARGUMENTS... STACK AT.
  std::string text = absl::StrCat("thread ", tid, " ", ReadStripped(directory + "comm"),
                                  " state=", close == std::string::npos ? "?" : stat.substr(close + 2, 1),
                                  " wchan=", ReadStripped(directory + "wchan"), "\n");
  const std::vector<std::string> fields = absl::StrSplit(call, ' ');
  uint64_t stack = 0, at = 0;
  if (fields.size() >= 3 && absl::SimpleHexAtoi(fields[fields.size() - 2], &stack) &&
      absl::SimpleHexAtoi(fields.back(), &at)) {
    absl::StrAppend(&text, "  system call ", fields[0], "\n  at ", NameOfCode(code, at), "\n");
    for (const std::string& each : CallsOnStack(pid, code, stack))
      absl::StrAppend(&text, "  calls ", each, "\n");
  } else if (!call.empty()) {
    absl::StrAppend(&text, "  ", call, "\n");
  }
  for (const absl::string_view line :
       absl::StrSplit(ReadStripped(directory + "stack"), '\n', absl::SkipEmpty()))
    absl::StrAppend(&text, "  kernel ", line, "\n");
  return text;
}

}  // namespace

std::string ThreadsText(pid_t pid) {
  std::vector<pid_t> threads;
  const std::string directory = absl::StrCat("/proc/", pid, "/task");
  if (const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir(directory.c_str()), closedir);
      tasks != nullptr) {
    while (const dirent* entry = readdir(tasks.get())) {
      pid_t tid = 0;
      if (absl::SimpleAtoi(entry->d_name, &tid)) threads.push_back(tid);
    }
  }
  if (threads.empty()) return absl::StrCat("process ", pid, " is gone\n");
  std::sort(threads.begin(), threads.end());
  const std::vector<CodeRange> code = ReadCode(pid);
  std::string text = absl::StrCat("process ", pid, ", ", threads.size(), " threads\n");
  for (size_t i = 0; i < std::min(threads.size(), kMaxThreads); ++i) {
    if (text.size() < kMaxThreadsText) text += ThreadText(pid, threads[i], code);
  }
  text.resize(std::min(text.size(), kMaxThreadsText));
  return text;
}

}  // namespace fsdpd
