"""The papers of a release archive: licences of all that is linked, the SBOM (CycloneDX 1.6), and the build's provenance (in-toto, SLSA 1).

`.ci/release` imports this file. Everything here follows from the commit, the lock, the target and the compiler: no time of the day, no
random number, no name of a folder.
"""

import hashlib
import json
import re
import subprocess
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

LICENSE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.I)
SPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562's space of object identifiers
# A type of build is a name that its reader knows: docs/INSTALLING.md explains this one.
BUILD_TYPE = "urn:tiebreak:release:1"


def utc(epoch):
    return datetime.fromtimestamp(epoch, timezone.utc)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def encoded(value):
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"


def numbered(document):
    """The bytes of an SBOM. Its serial number follows from all the rest, so that one build has one."""
    return encoded(document | {"serialNumber": f"urn:uuid:{uuid.uuid5(SPACE, sha256(encoded(document)))}"})


class Described:
    """What a build is made of."""

    def __init__(self, build, target, said):
        self.build, self.target = build, target
        self.env = build.environment(target)
        run = lambda *command: said(*command, cwd=build.source, env=self.env)
        self.rustc, self.cargo = run("rustc", "-vV"), run("cargo", "-V")
        self.sysroot = Path(run("rustc", "--print", "sysroot"))
        selection = ["--locked", "--target", target.triple, "--package", "tiebreak", *target.selection, "--format", "{p}"]
        linked = run("cargo", "tree", *selection, "--edges", "normal,no-proc-macro", "--prefix", "none")
        everything = run("cargo", "tree", *selection, "--edges", "normal,build", "--prefix", "depth")
        packages = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1"))["packages"]
        self.packages = {(package["name"], package["version"]): package for package in packages}
        self.linked = {identity(line) for line in linked.splitlines()}
        self.edges = edges(everything)
        self.root = identity(everything.splitlines()[0].removeprefix("0"))
        self.version = self.root[1]
        lock = tomllib.loads((build.source / "Cargo.lock").read_text())["package"]
        self.sums = {(package["name"], package["version"]): package.get("checksum") for package in lock}
        # What the linker adds to the crates: (name, version, licence, file with the notice).
        rustc = re.search(r"^release: (.*)$", self.rustc, re.M)[1]
        self.added = [("rust-std", rustc, "MIT OR Apache-2.0", self.sysroot / "share/doc/rust/COPYRIGHT-library.html")]
        if target.linker == "zig":
            zig = Path(said(self.env["PATH"].split(":")[0] + "/python", "-c", "import ziglang; print(ziglang.__path__[0])"))
            version = next(tool.split("==")[1] for tool in build.tools if tool.startswith("ziglang"))
            self.added.append(("zig-libunwind", version, "Apache-2.0 WITH LLVM-exception", zig / "lib/libunwind/LICENSE.TXT"))
            self.added.append(("zig-compiler-rt", version, "MIT", zig / "LICENSE"))
            if "musl" in target.triple:
                self.added.append(("zig-musl", version, "MIT", zig / "lib/libc/musl/COPYRIGHT"))

    def licenses(self):
        """The notices of all that is linked, each text once. Its first part says whose they are."""
        texts, table = {}, []
        for key in sorted(self.linked):
            package = self.packages[key]
            if package["source"] is None:
                continue
            folder = Path(package["manifest_path"]).parent
            files = sorted(file for file in folder.iterdir() if file.is_file() and LICENSE.match(file.name))
            numbers = [texts.setdefault(file.read_text(errors="replace").strip(), len(texts) + 1) for file in files]
            where = f"texts {', '.join(map(str, numbers))}" if numbers else "its package has no text"
            table.append(f"{key[0]} {key[1]}: {package['license']}; {where}")
        for name, version, license, file in self.added:
            number = texts.setdefault(file.read_text(errors="replace").strip(), len(texts) + 1)
            table.append(f"{name} {version}: {license}; texts {number}")
        head = "The command is linked from these crates and libraries, besides tiebreak's own.\n\n" + "\n".join(table)
        return head + "".join(f"\n\n==== text {number}\n\n{text}" for text, number in texts.items()) + "\n"

    def sbom(self, command):
        """The software bill of materials."""
        of_root = self.component(self.root)
        of_root |= {"type": "application", "hashes": [{"alg": "SHA-256", "content": sha256(command)}]}
        components = [self.component(key) for key in sorted(self.edges) if key != self.root]
        for name, version, license, _ in self.added:
            component = {"type": "library", "bom-ref": f"{name}@{version}", "name": name, "version": version}
            components.append(component | {"licenses": [{"expression": license}], "scope": "required"})
        dependencies = [
            {"ref": reference(key), "dependsOn": sorted(map(reference, below))} for key, below in sorted(self.edges.items())
        ]
        of_the_root = next(entry for entry in dependencies if entry["ref"] == reference(self.root))
        of_the_root["dependsOn"] = sorted(of_the_root["dependsOn"] + [f"{name}@{version}" for name, version, *_ in self.added])
        properties = {"target": self.target.triple, "features": self.target.features or "default", "commit": self.build.commit}
        document = {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {
                "timestamp": utc(self.build.epoch).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "tools": {"components": [{"type": "application", "name": "cargo", "version": self.cargo.split()[1]}]},
                "component": of_root,
                "properties": [{"name": f"tiebreak:{name}", "value": value} for name, value in properties.items()],
            },
            "components": components,
            "dependencies": dependencies,
        }
        return numbered(document)

    def component(self, key):
        name, version = key
        package = self.packages[key]
        license = re.sub(r"\s*/\s*", " OR ", package["license"])
        found = {"type": "library", "bom-ref": reference(key), "name": name, "version": version, "licenses": [{"expression": license}]}
        if package["source"] is not None:
            found["purl"] = f"pkg:cargo/{name}@{version.replace('+', '%2B')}"
            found["hashes"] = [{"alg": "SHA-256", "content": self.sums[key]}]
        # Procedural macros and what build scripts need run on the builder's machine; the command holds none of it.
        return found | {"scope": "required" if key in self.linked else "excluded"}

    def provenance(self, subjects, tools):
        """The in-toto statement, one line; nobody has signed it."""
        lock = (self.build.source / "Cargo.lock").read_bytes()
        names = [(str(folder), name) for folder, _, name in self.build.replaced]
        flags = self.env["RUSTFLAGS"]
        for folder, name in names:
            flags = flags.replace(f"={folder}=", f"={name}=")
        # Folders of the registry differ in their names alone; one flag says it.
        flags = list(dict.fromkeys(flags.split()))
        materials = [{"name": "source", "uri": "git:tiebreak", "digest": {"gitCommit": self.build.commit}}]
        materials.append({"name": "Cargo.lock", "digest": {"sha256": sha256(lock)}})
        for name, version in sorted(self.edges):
            if self.packages[name, version]["source"] is not None:
                materials.append({"uri": f"pkg:cargo/{name}@{version.replace('+', '%2B')}", "digest": {"sha256": self.sums[name, version]}})
        if self.target.linker == "zig":
            materials += [{"uri": "pkg:pypi/" + re.sub(r"\[.*\]", "", tool).replace("==", "@")} for tool in tools if "zig" in tool]
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": name, "digest": {"sha256": sha256(data)}} for name, data in sorted(subjects.items())],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "commit": self.build.commit,
                        "target": self.target.triple,
                        "features": self.target.features or "default",
                    },
                    "internalParameters": {
                        "command": self.build.invocation(self.target),
                        "rustflags": flags,
                        "environment": {"SOURCE_DATE_EPOCH": str(self.build.epoch)},
                        "profile": "release",
                    },
                    "resolvedDependencies": materials,
                },
                "runDetails": {
                    "builder": {"id": "urn:tiebreak:release:local", "version": {"rustc": self.rustc, "cargo": self.cargo}},
                },
            },
        }
        return json.dumps(statement, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def identity(line):
    """Name and version in a line of `cargo tree`: `name vVERSION (more)`."""
    name, version = line.split()[:2]
    return name, version.removeprefix("v")


def reference(key):
    return f"{key[0]}@{key[1]}"


def edges(tree):
    """What each package needs, of `cargo tree --prefix depth`. A package that comes again has its needs where it came first."""
    found, above = {}, []
    for line in tree.splitlines():
        depth, rest = re.fullmatch(r"(\d+)(\S.*)", line).groups()
        key = identity(rest)
        found.setdefault(key, set())
        del above[int(depth):]
        if above:
            found[above[-1]].add(key)
        above.append(key)
    return found


# Reads both papers by the programs of those who define them: a field that they do not know is an error.
CHECK = """
import json, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
papers = json.load(sys.stdin)
for name, text in papers.items():
    if name.endswith(".cdx.json"):
        error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
        if error:
            sys.exit(f"{name}: {error}")
        document = json.loads(text)
        known = {c["bom-ref"] for c in document["components"]} | {document["metadata"]["component"]["bom-ref"]}
        unknown = {r for d in document["dependencies"] for r in [d["ref"], *d["dependsOn"]]} - known
        if unknown:
            sys.exit(f"{name}: dependencies name what is no component: {unknown}")
    else:
        statement = json.loads(text)
        json_format.ParseDict(statement["predicate"], provenance_pb2.Provenance())
        Statement.copy_from_pb(json_format.ParseDict(statement, statement_pb2.Statement())).validate()
"""


def check(tools, made, count=2):
    """Fails if there are not so many papers, or one is not as its format says."""
    papers = {name: data.decode() for name, data in made.items() if name.endswith((".cdx.json", ".intoto.jsonl"))}
    assert len(papers) == count, papers.keys()
    subprocess.run([tools / "bin/python", "-c", CHECK], input=json.dumps(papers), text=True, check=True)
