// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/man.h"

#include <limits>

#include "daemon/config/schema.h"
#include "daemon/config/value.h"

namespace vitamin::config {
namespace {

constexpr const char* kBefore = R"(.\" SPDX-License-Identifier: Apache-2.0
.\" Made from the tables of the program: vitamin config schema --man >docs/man/vitamin.toml.5
.Dd November 26, 2026
.Dt VITAMIN.TOML 5
.Os
.Sh NAME
.Nm vitamin.toml
.Nd how the GPUs of a cluster are shared
.Sh SYNOPSIS
.Pa /etc/vitamin/vitamin.toml
.Sh DESCRIPTION
One file for a whole cluster, in TOML, read by
.Xr vitamind 8 ,
.Xr vitamin-run 1
and the plugin for Slurm.
Every key is optional.
What holds on a node comes, the later over the earlier and key by key, from built-in values, this
file,
.Pa /etc/vitamin/conf.d/*.toml
by name, variables of the environment, and the command line.
.Pp
A key that is unknown, of another type or out of its range makes the file invalid, and nothing of an
invalid file is used;
.Ql vitamin config check
names every problem with its line.
.Xr vitamind 8
reads the file again when it gets SIGHUP.
Clients that are connected stay in their class and get the weight, the shares, the reservation, the
quotas and the latency bounds that it has now.
What options of the command line say stays.
Other keys hold for new clients, for new programs or from the next start of vitamind on: the page
.Pa operating.md
of the documentation says which.
.Pp
.Em Durations
are texts with a unit: ns, us, ms, s, min or h.
.Em Sizes
are texts with a unit: KiB, MiB, GiB or TiB (or Ki, Mi, Gi, Ti) in powers of 1024, kB, MB, GB or TB
in powers of 1000; or a percentage of each device, as 50%.
.Em Patterns
are texts in which * stands for anything, ? for one character, [1-64] for numbers and a comma
between two of them for either; or lists of such texts.
.Sh KEYS
.Bl -tag -width Ds
)";

constexpr const char* kClasses = R"(.El
.Sh CLASSES
Each
.Ql [[class]]
names a kind of program.
All of its conditions must hold; the first class whose conditions hold is the program's.
A user can choose any command and environment, so a class for some users only must name them in
.Ic user .
.Pp
.Xr vitamin-run 1
evaluates all conditions, with the environment of the program, which its user sets.
.Xr vitamind 8
knows only the user and the program's name: for programs that start otherwise (under
.Ql srun --vitamin ,
in pods and in containers by CDI), and that name no class, a class with another condition, or with a
.Ic command
that has a '/', never matches.
.Ic mps.priorities ,
.Ic mps.connections
and
.Ic collectives
act through
.Xr vitamin-run 1
only.
.Bl -tag -width Ds
.It Ic name
text.
Its name; must be there.
)";

constexpr const char* kAfter = R"(.El
.Sh NODES AND DEVICES
.Ql [nodes."gpu[1-64],login*"]
holds sections that are for the nodes whose host name matches, over what stands outside.
.Ql [devices."NVIDIA H200*"]
holds the sections pool and policy for devices whose name or UUID matches.
.Sh FILES
.Bl -tag -width Ds
.It Pa /etc/vitamin/vitamin.toml
The file; another one:
.Ev VITAMIN_CONFIG
or
.Fl -config .
.It Pa /etc/vitamin/conf.d/*.toml
Read after it, by name.
.El
.Sh EXAMPLES
.Bd -literal
[policy]
name = "slo"

[[class]]
name = "serving"
command = "serve*"
kind = "latency"
ttft = "500ms"
tpot = "30ms"

[[class]]
name = "training"
slurm_partition = "batch"
kind = "batch"
share = 75

[nodes."gpu[1-64]".policy]
quantum = "2ms"
.Ed
.Sh SEE ALSO
.Xr vitamin 1 ,
.Xr vitamin-config 1 ,
.Xr vitamind 8
)";

template <class Target>
std::string type_of(const Key<Target>& key) {
  const auto from_to = [&](const auto& text) {
    return " from " + text(key.low) + " to " + text(key.high);
  };
  const bool any = key.high == std::numeric_limits<std::int64_t>::max();
  switch (key.type) {
    case SettingType::kText:
      return "text";
    case SettingType::kBoolean:
      return "true or false";
    case SettingType::kInteger:
      return any ? "number" : "number" + from_to([](std::int64_t n) { return std::to_string(n); });
    case SettingType::kDuration:
      return "duration" + from_to([](std::int64_t nanoseconds) {
               return duration_text(static_cast<std::uint64_t>(nanoseconds));
             });
    case SettingType::kChoice: {
      std::string all;
      for (const std::string& choice : key.choices) all += (all.empty() ? "" : ", ") + choice;
      return "one of " + all;
    }
    case SettingType::kMemory:
      return "size";
    case SettingType::kPatterns:
      return "patterns";
    case SettingType::kTable:
      return "table";
  }
  return {};
}

// In lines of a source file's width. A line that begins with a quote or a period would be a
// request.
std::string wrapped(std::string text) {
  constexpr std::size_t kColumns = 100;
  for (std::size_t begin = 0; text.size() - begin > kColumns;) {
    std::size_t space = text.rfind(' ', begin + kColumns);
    while (space != text.npos && space > begin &&
           (text[space + 1] == '\'' || text[space + 1] == '.'))
      space = text.rfind(' ', space - 1);
    if (space == text.npos || space <= begin) break;
    text[space] = '\n';
    begin = space + 1;
  }
  return text;
}

std::string sentence(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z')
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return wrapped(text + ".") + "\n";
}

template <class Target>
std::string item(const Key<Target>& key, const Target& built_in) {
  std::string text = ".It Ic " + key.path + "\n" + type_of(key) + ".\n" + sentence(key.meaning);
  const std::string value = key.read != nullptr ? text_of(key, key.read(built_in)) : "";
  if (!value.empty() && value != "\"\"" && value != "[]" && value != "{}")
    text += "Default: " + value + ".\n";
  return text;
}

}  // namespace

std::string man_page() {
  std::string page = kBefore;
  for (const SettingKey& key : setting_keys())
    page += item(key, Configuration()) + "Variable:\n.Ev " + environment_variable(key.path) +
            (key.of_device ? " .\nAlso of devices.\n" : " .\n");
  page += kClasses;
  for (const ClassKey& key : class_keys()) page += item(key, WorkloadClass());
  return page + kAfter;
}

}  // namespace vitamin::config
