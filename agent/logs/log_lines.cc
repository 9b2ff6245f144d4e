#include "agent/logs/log_lines.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/errno_status.h"
#include "base/limits.h"
#include "base/unique_fd.h"

namespace fsdpd {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD.
constexpr int64_t kBlockBytes = 64 << 10;

// Length of the UTF-8 character at the front of `bytes`; 0 if invalid. Like protobuf, it rejects overlong
// forms, surrogates and code points above U+10FFFF.
size_t CharacterBytes(absl::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || bytes.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && at(1) < 0xA0) return 0;
  if (lead == 0xED && at(1) > 0x9F) return 0;
  if (lead == 0xF0 && at(1) < 0x90) return 0;
  if (lead == 0xF4 && at(1) > 0x8F) return 0;
  return size;
}

}  // namespace

std::string ValidUtf8(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t size = CharacterBytes(bytes);
    absl::StrAppend(&text, size == 0 ? kReplacement : bytes.substr(0, size));
    bytes.remove_prefix(std::max<size_t>(size, 1));
  }
  return text;
}

void LineSplitter::Append(absl::string_view bytes, std::vector<std::string>* lines) {
  while (true) {
    const size_t end = bytes.find('\n');
    AppendToLine(bytes.substr(0, end));
    if (end == absl::string_view::npos) return;
    lines->push_back(TakeLine());
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::Finish(std::vector<std::string>* lines) {
  if (started_) lines->push_back(TakeLine());
}

void LineSplitter::AppendToLine(absl::string_view bytes) {
  const size_t free_bytes = kMaxLogLineBytes - line_.size();
  line_.append(bytes.data(), std::min(free_bytes, bytes.size()));
  if (bytes.size() > free_bytes) cut_bytes_ += static_cast<int64_t>(bytes.size() - free_bytes);
  started_ |= !bytes.empty();
}

std::string LineSplitter::TakeLine() {
  if (cut_bytes_ == 0 && !line_.empty() && line_.back() == '\r') line_.pop_back();
  std::string text = ValidUtf8(line_);
  if (cut_bytes_ > 0) absl::StrAppend(&text, " [", cut_bytes_, " bytes cut]");
  line_.clear();
  cut_bytes_ = 0;
  started_ = false;
  return text;
}

int64_t TailOffset(int fd, int64_t size, int lines, int64_t max_bytes) {
  // max_bytes is negative if the log was truncated after its front was read.
  const int64_t first = size - std::clamp<int64_t>(max_bytes, 0, size);
  std::string block(kBlockBytes, '\0');
  for (int64_t end = size; end > first;) {
    const int64_t begin = std::max(first, end - kBlockBytes);
    const ssize_t got = pread(fd, block.data(), static_cast<size_t>(end - begin), begin);
    if (got < end - begin) return begin;  // Truncated or unreadable; the reader will find out too.
    for (int64_t i = end - 1; i >= begin; --i) {
      // A line end at the end of the file starts no further line.
      if (block[static_cast<size_t>(i - begin)] == '\n' && i + 1 < size && --lines == 0) return i + 1;
    }
    end = begin;
  }
  return first;
}

absl::Status AppendNotice(const std::string& path, absl::string_view words) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!fd.valid()) return ErrnoStatus(path);
  struct stat facts = {};
  char last = '\n';
  if (fstat(fd.get(), &facts) == 0 && facts.st_size > 0 && pread(fd.get(), &last, 1, facts.st_size - 1) != 1)
    last = '\n';
  const std::string text = absl::StrCat(last == '\n' ? "" : "\n", "[fsdpd-agent: ", words, "]\n");
  return write(fd.get(), text.data(), text.size()) < 0 ? ErrnoStatus(path) : absl::OkStatus();
}

}  // namespace fsdpd
