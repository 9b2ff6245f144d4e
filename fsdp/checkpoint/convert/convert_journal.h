// Progress journal of a conversion, stored as `.fsdpd_conversion` in the directory being written. An
// interrupted, killed or out-of-space conversion resumes from it.
//
// The journal has the conversion's arguments and the complete files, each with its checksum. A file is added
// once it is complete and on disk under its final name, so listed files are complete unless something else
// modified them, which checksums detect. Files that are not listed are written again.
//
//   Open()    reads the journal of an interrupted conversion in `directory` and removes incomplete files.
//             Rejects a journal with other arguments (FAILED_PRECONDITION, with each difference) without
//             removing anything, unless `anew`, which starts over.
//   Add()     records a complete file. Thread-safe.
//   Remove()  deletes the journal when all is done, before the directory gets its final name.
//
// Other errors: ErrnoStatus's; CANCELLED while checksums are verified.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fsdp/checkpoint/format/part_directory.h"
#include "fsdp/checkpoint/format/tensor_store.h"

namespace fsdpd {

inline constexpr char kJournalName[] = ".fsdpd_conversion";

// Arguments of a conversion with readable names. Conversions with equal arguments produce the same bytes.
using ConversionArguments = std::vector<std::pair<std::string, std::string>>;

struct JournaledFile {
  CompleteFile file;
  int64_t overflowed = 0;  // Elements that overflowed in the new type.
};

class ConversionJournal {
 public:
  // `directory` must outlive it.
  static absl::StatusOr<std::unique_ptr<ConversionJournal>> Open(PartDirectory* directory,
                                                                 ConversionArguments arguments, bool anew,
                                                                 int threads,
                                                                 const std::function<bool()>& stopped);

  // Files that were already complete at Open().
  std::vector<JournaledFile> found() const { return found_; }

  absl::Status Add(const JournaledFile& file);
  absl::Status Remove();

 private:
  ConversionJournal(PartDirectory* directory, ConversionArguments arguments)
      : directory_(*directory), arguments_(std::move(arguments)) {}

  PartDirectory& directory_;
  const ConversionArguments arguments_;
  std::vector<JournaledFile> found_;
  Mutex mutex_;
  std::vector<JournaledFile> files_ ABSL_GUARDED_BY(mutex_);
  // A thread is writing the journal; mutex_ is not held meanwhile.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
};

// Names, sizes and modification times of a checkpoint's files: the text changes if any file is replaced.
absl::StatusOr<std::string> FilesText(const std::string& directory);

}  // namespace fsdpd
