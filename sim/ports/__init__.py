"""The mapping between golden configurations and units: sizes in one direction, values of `cfg_*` ports in the other.

Each unit has a module, so that its tests depend on its own golden model only. `*_config` and `cluster_rule` return the
golden configuration with the sizes of a unit; `*_ports` return the values of a unit's `cfg_*` ports for a golden
configuration, as `sim.bench.run.simulate` takes them; `core_settings` returns them as values of a core's registers.
"""

PREFIX = "cfg_"
