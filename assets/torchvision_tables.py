#!/usr/bin/env python3
"""The parameters and buffers of torchvision's networks, by name and shape, for tests/engine/programs.rs. Writes torchvision_tables.json beside itself. Needs
torchvision (0.20 made the file).

    python3 assets/torchvision_tables.py
"""

import json
import pathlib

import torchvision.models as models

networks = {name: getattr(models, name)(weights=None) for name in ("resnet18", "resnet50", "resnext50_32x4d", "vgg11", "vgg11_bn")}
tables = {name: {"count": sum(p.numel() for p in network.parameters()),
                 "parameters": [[n, list(p.shape)] for n, p in network.named_parameters()],
                 "buffers": [[n, list(b.shape)] for n, b in network.named_buffers() if b.dim()]}
          for name, network in networks.items()}
rows = ",\n".join(f'  "{name}": {json.dumps(table, separators=(",", ":"))}' for name, table in tables.items())
pathlib.Path(__file__).with_name("torchvision_tables.json").write_text("{\n" + rows + "\n}\n")
