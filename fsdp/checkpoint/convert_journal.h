// What a conversion has done so far, in a file of the directory that it makes: `.fsdpd_conversion`. Who is
// interrupted, killed or finds the disk full goes on from it.
//
// It says what the conversion was asked for, and which files are whole, each with its sum. A file is written
// into it when it is complete and on disk under its name; so what it names is whole, unless somebody else was
// there since, which the sums show. What it does not name is written anew.
//
//   Open()    reads what an interrupted one left in `directory`, and removes all that is not whole. Refused
//             where that one was asked for something else (FAILED_PRECONDITION, with each difference), and
//             then nothing is removed; unless `anew`, which begins from nothing.
//   Add()     when a file is whole. On any thread.
//   Remove()  when all is done, before the directory gets its name.
//
// Other errors: ErrnoStatus's; CANCELLED while sums are compared.
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fsdp/checkpoint/part_directory.h"
#include "fsdp/checkpoint/tensor_store.h"

namespace fsdpd {

inline constexpr char kJournalName[] = ".fsdpd_conversion";

// What a conversion was asked for, each with a name for people: two that have all the same make the same
// bytes.
using ConversionArguments = std::vector<std::pair<std::string, std::string>>;

struct JournaledFile {
  WholeFile file;
  int64_t overflowed = 0;  // Of its numbers.
};

class ConversionJournal {
 public:
  // `directory` must outlive it.
  static absl::StatusOr<std::unique_ptr<ConversionJournal>> Open(PartDirectory* directory,
                                                                 ConversionArguments arguments, bool anew,
                                                                 int threads,
                                                                 const std::function<bool()>& stopped);

  // What is whole since before Open().
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
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // Some thread; no lock is held meanwhile.
};

// Which files of a checkpoint there are, how long and since when: another text where one was replaced.
absl::StatusOr<std::string> FilesText(const std::string& directory);

}  // namespace fsdpd
