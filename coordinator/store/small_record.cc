#include "coordinator/store/small_record.h"

#include <absl/strings/str_cat.h>

#include <string>

#include "base/check.h"
#include "base/text.h"

namespace fsdpd {
namespace {

constexpr char kWhy[] = "the job record was too large to store";

void DropLogTail(v1::Job::Failure* failure) {
  const int lines = failure->log_tail_size();
  size_t bytes = 0;
  for (const std::string& line : failure->log_tail()) bytes += line.size();
  if (bytes <= kShortTextBytes) return;
  failure->clear_log_tail();
  failure->add_log_tail(absl::StrCat("[fsdpd-coordinator: ", lines, " log lines dropped: ", kWhy, "]"));
}

void Shorten(std::string* text) {
  if (text->size() <= kShortTextBytes) return;
  std::string start = CutText(*text, kShortTextBytes);
  *text = absl::StrCat(start, " [", text->size() - start.size(), " bytes dropped: ", kWhy, "]");
}

template <typename Texts>
void ShortenAll(Texts* texts) {
  for (std::string& text : *texts) Shorten(&text);
}

void ShortenFailure(v1::Job::Failure* failure) {
  Shorten(failure->mutable_error());
  if (failure->has_hang()) failure->mutable_hang()->clear_positions();
}

}  // namespace

v1::Job SmallRecord(v1::Job job, RecordSize size) {
  FSDPD_CHECK(size != RecordSize::kWhole);
  if (job.has_failure()) DropLogTail(job.mutable_failure());
  if (size == RecordSize::kWithoutLogs) return job;
  if (job.has_failure()) ShortenFailure(job.mutable_failure());
  Shorten(job.mutable_reason());
  ShortenAll(job.mutable_warnings());
  job.clear_positions();
  if (job.has_failed_checkpoint()) Shorten(job.mutable_failed_checkpoint()->mutable_error());
  if (job.has_exported()) Shorten(job.mutable_exported()->mutable_error());
  if (job.has_restored()) {
    ShortenAll(job.mutable_restored()->mutable_skipped_checkpoints());
    ShortenAll(job.mutable_restored()->mutable_notes());
  }
  if (job.has_last_step()) ShortenAll(job.mutable_last_step()->mutable_warnings());
  if (job.has_pause()) Shorten(job.mutable_pause()->mutable_lost_steps_reason());
  if (job.has_shrunk()) Shorten(job.mutable_shrunk()->mutable_reason());
  for (v1::Job::Event& event : *job.mutable_events()) Shorten(event.mutable_message());
  return job;
}

}  // namespace fsdpd
