// The parsed command line of fsdpctl (parse_command_line.h). A comment next to a field names the commands
// that use it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fsdpd {

constexpr char kDefaultServer[] = "127.0.0.1:7777";
constexpr char kJsonPathForm[] = "jsonpath=";  // Prefix of a template in -o.

struct CommandLine {
  std::string command;  // "submit", "get", ...
  // ckpt: "inspect", "verify", "convert", "merge", "diff"; token: "new"; context: "use", "list", "show".
  std::string action;
  std::string server;                // Empty: from the context, else kDefaultServer.
  std::string context;               // Name in the contexts file; empty: the current context.
  std::set<std::string> flags;       // The flags of AccessFlags() that were given.
  bool takes_token_variable = true;  // False if FSDPD_TOKEN belongs to a different coordinator.
  std::string output = "table";      // table, json, yaml, wide, name, spec, csv, jsonpath=TEMPLATE
  double timeout_seconds = 10;       // Limit of a unary call, and of a search if --timeout was given.
  std::string coordinator_ca;        // Path; empty: plaintext.
  std::string token_file;            // Path; empty: from the environment, or no token.
  std::string trusted;               // Contents of coordinator_ca, set by ReadAccess().
  std::string token;                 // Contents of token_file, set by ReadAccess().

  std::string file;                 // submit, validate, plan, migrate; ckpt: the directory
  std::string target;               // ckpt convert; ckpt diff: the second directory
  std::string base;                 // ckpt merge: directory of the base model; empty: the adapters name it.
  std::string to;                   // ckpt convert: hf, peft and others; export: tensorboard, wandb
  std::string config;               // ckpt convert, diff: path of a config.json, or empty.
  std::string spec;                 // ckpt convert, diff: path of a job spec, or empty.
  std::string dtype;                // ckpt convert; empty: the default of `to`.
  std::string shard_bytes = "5GB";  // ckpt convert
  bool no_optimizer = false;        // ckpt convert
  bool overwrite = false;           // ckpt convert
  std::vector<std::string> sets;    // submit, validate, plan
  bool offline = false;             // validate, plan
  bool program = false;             // plan
  bool search = false;              // plan
  std::vector<std::string> hold;    // plan: fields that a search does not change.
  std::string write;                // plan: output path, or empty.
  std::string profile;              // plan; empty: the profile of the spec's device.
  std::string trace;                // plan: output path, or empty.
  std::string picture;              // plan: output path, or empty.
  std::optional<int64_t> nodes;     // migrate; empty: from the settings, else 1.
  std::optional<int64_t> ranks_per_node;  // migrate; empty: from the settings, else 8.
  std::string name = "migrated";          // migrate
  std::string device = "cpu";             // profile-device
  int ranks = 0;                          // profile-device; 0: all devices that the rank binary finds.
  std::string rank_binary;                // profile-device; empty: the one in fsdpctl's directory.
  std::string request_id;                 // submit; empty: generated.
  std::string from;                       // submit; JOB or JOB@STEP, or empty.
  std::vector<std::string> after;         // submit; ids
  std::vector<std::string> labels;        // submit; KEY=VALUE
  bool show_labels = false;               // get
  std::string selector;                   // get, nodes, cancel, pause, resume, retry, delete; may be empty.
  bool preemptible = false;               // submit
  std::vector<std::string> arrays;        // submit; PATH=VALUE,VALUE
  std::string array;                      // get, cancel: id of an array, or empty.
  std::string record;                     // submit, watch: output path, or empty.
  bool follow = false;                    // submit, logs, events

  std::vector<std::string> jobs;    // get, wait, cancel, pause, resume, retry, delete
  std::vector<std::string> states;  // get; short names
  std::string job;                  // describe, watch, logs, trace

  bool step_history = false;   // get
  bool step_timeline = false;  // get
  int first_step = 0;          // get, export; 0: the first.
  int last_step = 0;           // get, export; 0: the newest.
  int every_step = 0;          // get, export; 0: all.
  bool watch = false;          // get
  std::optional<int> limit;    // get; empty: all.
  std::string order_by;        // get, nodes; empty: the coordinator's default order.
  std::string etag;            // cancel, pause, resume, retry, delete; empty: unconditional.
  std::string sort_by;         // get: a field path, with a leading '-' for descending order, or empty.

  std::string wait_for = "ended";              // wait; client/connect/wait_condition.h
  std::optional<double> wait_timeout_seconds;  // wait, drain; empty: no limit.
  double every_seconds = 2;                    // top
  bool once = false;                           // top
  std::string first;            // diff: path of a spec, or id of a job. `target` or `file` is the second.
  std::string field;            // explain: a field path, or empty.
  std::string name_of_context;  // context
  std::string shell;            // completion; "bash", "zsh", "fish"

  std::optional<int> rank;     // logs, trace
  std::optional<int> attempt;  // logs, trace, get, export
  int tail = 0;                // logs; 0: from the beginning.
  bool previous = false;       // logs: the attempt before the newest.
  std::string since;           // logs, events: see client/text/log_choice.h, or empty.
  std::string grep;            // logs: a pattern, or empty.
  bool evidence = false;       // logs: show the evidence of stalled ranks instead.

  int steps = 1;         // trace
  bool written = false;  // trace: fetch traces that exist instead of recording new ones.
  bool memory = false;   // trace: memory snapshots too.
  std::string out;  // trace: output path, empty: named after the job. token new: path. export: directory.

  int64_t after_event = 0;  // events: a sequence number.
  bool force = false;       // drain, node delete

  std::string node;                      // preflight, drain, events, describe, node delete
  std::vector<std::string> node_names;   // cordon, uncordon
  std::string reason;                    // cancel, pause, resume, retry, cordon, drain
  std::optional<int64_t> grace_seconds;  // cancel, pause, drain
  bool wait = false;                     // cancel, pause, drain

  std::string project;        // submit, get, token new; may be empty.
  bool all_projects = false;  // get

  std::string principal;  // token new
  std::string role;       // token new
};

}  // namespace fsdpd
