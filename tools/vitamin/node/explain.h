// SPDX-License-Identifier: Apache-2.0
//
// vitamin explain: from a daemon's status to why each client has what it has.
//
// The document, schema 1 (fields are only ever added), is described in docs/explain.md. Widths are
// SMs (CUs on AMD), times seconds, bounds milliseconds, speeds relative to the client alone on the
// whole device, leads and costs parts of 1; null: not known.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "hal/result.h"

namespace vitamin::tools {

// Of one client or job, or of all where `which` is empty: the number of a client, a job or one of
// its steps, POD or NAMESPACE/POD, or the name of a program. An error, kInvalidArgument or
// kUnavailable (nothing was decided yet), says what to do.
hal::Result<nlohmann::json> explain(const nlohmann::json& status, const std::string& which);

// ", isolation domain 'class NAME'" of a device of a status or of an explanation; empty: it is the
// shared one.
std::string domain_text(const nlohmann::json& device);

// The same for people.
std::string explanation_text(const nlohmann::json& explained);

}  // namespace vitamin::tools
