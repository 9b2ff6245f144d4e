// The command line of fsdpctl, parsed: its commands, flags, help and what a misspelt one gets told.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/console.h"

namespace CLI {
class App;
}

namespace fsdpd {

constexpr char kDefaultServer[] = "127.0.0.1:7777";
constexpr char kJsonPathForm[] = "jsonpath=";  // What -o takes before a template.

struct CommandLine {
  std::string command;  // "submit", "get", ...
  std::string
      action;  // ckpt; "inspect", "verify", "convert", "diff". token; "new". context; "use", "list", "show"
  std::string server;                // Empty: by the context, or kDefaultServer.
  std::string context;               // A name in the contexts file; empty: its current one.
  std::set<std::string> flags;       // Those of AccessFlags() that were given.
  bool takes_token_variable = true;  // False where FSDPD_TOKEN is for another coordinator.
  std::string output = "table";      // table, json, yaml, wide, name, spec, csv, jsonpath=TEMPLATE
  double timeout_seconds = 10;       // Of a unary call; of a search if --timeout was given.
  std::string coordinator_ca;        // A file; empty: plaintext.
  std::string token_file;            // Empty: by the environment, or none.
  std::string trusted;               // What is in coordinator_ca: ReadCredentials().
  std::string token;                 // What is in token_file: likewise.

  std::string file;                 // submit, validate, plan, migrate; ckpt: the directory
  std::string target;               // ckpt convert; ckpt diff: the second directory
  std::string to;                   // ckpt convert; fsdp_dtensor, hf, torch_dist. export; tensorboard, wandb
  std::string config;               // ckpt convert, diff; a config.json, or empty.
  std::string spec;                 // ckpt convert, diff; a job's, or empty.
  std::string dtype;                // ckpt convert; empty: by `to`.
  std::string shard_bytes = "5GB";  // ckpt convert
  bool no_optimizer = false;        // ckpt convert
  bool overwrite = false;           // ckpt convert
  std::vector<std::string> sets;    // submit, validate, plan
  bool offline = false;             // validate, plan
  bool program = false;             // plan
  bool search = false;              // plan
  std::vector<std::string> hold;    // plan; fields that a search leaves as they are.
  std::string write;                // plan; a file, or empty.
  std::string profile;              // plan; empty: by the spec's device.
  std::string trace;                // plan; a file, or empty.
  std::string picture;              // plan; a file, or empty.
  std::optional<int64_t> nodes;     // migrate; empty: the settings say it, or 1.
  std::optional<int64_t> ranks_per_node;  // migrate; empty: likewise, or 8.
  std::string name = "migrated";          // migrate
  std::string device = "cpu";             // profile-device
  int ranks = 0;                          // profile-device; 0: what the rank binary finds.
  std::string rank_binary;                // profile-device; empty: the one beside fsdpctl.
  std::string request_id;                 // submit; empty: one is made.
  std::string from;                       // submit; JOB or JOB@STEP, or empty.
  std::vector<std::string> after;         // submit; ids
  std::vector<std::string> labels;        // submit; KEY=VALUE
  bool show_labels = false;               // get
  std::string selector;                   // get, cancel, pause, resume, retry, delete; empty: none is named.
  bool preemptible = false;               // submit
  std::vector<std::string> arrays;        // submit; PATH=VALUE,VALUE
  std::string array;                      // get, cancel; an array's id, or empty.
  std::string record;                     // submit, watch; empty: none.
  bool follow = false;                    // submit, logs, events

  std::vector<std::string> jobs;    // get, wait, cancel, pause, resume, retry, delete
  std::vector<std::string> states;  // get; short names
  std::string job;                  // describe, watch, logs, trace

  bool of_steps = false;     // get
  bool of_course = false;    // get
  int first_step = 0;        // get, export; 0: the first.
  int last_step = 0;         // get, export; 0: the newest.
  int every_step = 0;        // get, export; 0: all.
  bool watch = false;        // get
  std::optional<int> limit;  // get; empty: all.
  std::string filter;        // get, nodes, events; empty: all.
  std::string order_by;      // get, nodes; empty: as the coordinator does.
  std::string etag;          // cancel, pause, resume, retry, delete; empty: whatever the job is.
  std::string sort_by;       // get; a path, after a '-' for the largest first, or empty.

  std::string wait_for = "ended";          // wait; client/wait_condition.h
  std::optional<double> patience_seconds;  // wait, drain; empty: for ever.
  double every_seconds = 2;                // top
  bool once = false;                       // top
  std::string first;                       // diff; a file, or a job's id. The second: `target`, or `file`.
  std::string field;                       // explain; a path, or empty.
  std::string name_of_context;             // context
  std::string shell;                       // completion; "bash", "zsh", "fish"

  std::optional<int> rank;     // logs, trace
  std::optional<int> attempt;  // logs, trace, get, export
  int tail = 0;                // logs; 0: from the beginning
  bool previous = false;       // logs; the attempt before the newest.
  std::string since;           // logs, events; client/log_choice.h, or empty.
  std::string grep;            // logs; a pattern, or empty.
  bool evidence = false;       // logs; of ranks that stood still, instead.

  int steps = 1;         // trace
  bool written = false;  // trace; what was written before.
  bool memory = false;   // trace; memory snapshots too.
  std::string out;       // trace; a file, or empty: by the job. token new. export; a directory.

  int64_t after_event = 0;  // events; a sequence.
  bool force = false;       // drain, node delete

  std::string node;                      // preflight, drain, events, describe, node delete
  std::vector<std::string> node_names;   // cordon, uncordon
  std::string reason;                    // cancel, pause, resume, retry, cordon, drain
  std::optional<int64_t> grace_seconds;  // cancel, pause, drain
  bool wait = false;                     // cancel, pause, drain

  std::string project;        // submit, get, token new; empty: none is named.
  bool all_projects = false;  // get

  std::string person;  // token new
  std::string role;    // token new
};

// Names of fsdpctl's own commands, which no program of PATH replaces.
std::vector<std::string> CommandNames();

// All commands and flags, which write to `line` when `app` parses.
void BuildApp(CLI::App* app, CommandLine* line);

// Of --server, --context, --coordinator-ca, --token-file and --timeout those that are given: CLI11 does not
// distinguish a flag from a variable or a default.
std::set<std::string> AccessFlags(const std::vector<std::string>& words);

// An exit code when the program ends here (help, or wrong usage, which is explained on console->err).
std::optional<int> ParseCommandLine(const std::vector<std::string>& arguments, CommandLine* line,
                                    Console* console);

}  // namespace fsdpd
