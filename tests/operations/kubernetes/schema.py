# SPDX-License-Identifier: Apache-2.0
"""Checks Kubernetes objects against the API's field names and types (schema.json)."""
import json
import pathlib

import jsonschema

HERE = pathlib.Path(__file__).resolve().parent
SCHEMAS = [json.loads((HERE / name).read_text()) for name in ("schema.json", "operators.json")]


def problems(thing):
    """A sentence for each error of one object; empty: none."""
    kind = thing.get("kind")
    for schema in SCHEMAS:
        if kind in schema["kinds"]:
            known = schema["kinds"][kind]
            if thing.get("apiVersion") != known["apiVersion"]:
                return [f"{kind} is not of {thing.get('apiVersion')} but {known['apiVersion']}"]
            checker = jsonschema.Draft7Validator({"$ref": known["$ref"],
                                                  "definitions": schema["definitions"]})
            return [f"{kind} {'.'.join(map(str, error.absolute_path))}: {error.message}"
                    for error in checker.iter_errors(thing)]
    return [f"{kind} is no kind that is known here"]
