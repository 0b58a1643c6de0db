"""Specifications of the charts in Vega-Lite; ``"$name"`` stands for a value of a view.

Satyanarayan, Moritz, Wongsuphasawat and Heer (2017), "Vega-Lite: A Grammar of Interactive
Graphics".
"""

from typing import Any

_Y_SCALE = {"type": "$yScale", "domain": "$yDomain", "nice": False}
_Y = {"field": "mean", "type": "quantitative", "title": "$y", "scale": _Y_SCALE}
_X = {
    "field": "x",
    "type": "quantitative",
    "title": "$x",
    "scale": {"type": "$xScale", "domain": "$xDomain", "nice": False},
    "axis": {"labelExpr": "abs(datum.value) < 1e5 ? datum.label : format(datum.value, '~s')"},
}
_COLOR = {
    "field": "method",
    "type": "nominal",
    "scale": {"domain": "$methods", "range": "$colors"},
    "legend": None,  # buttons above the charts are the legend
}
_DASH = {
    "field": "method",
    "type": "nominal",
    "scale": {"domain": "$methods", "range": "$dashes"},
    "legend": None,
}
_CONFIG = {
    "customFormatTypes": True,
    "font": "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "gridColor": "#E3E6E8",
        "labelColor": "#333333",
        "titleColor": "#333333",
        "domainColor": "#333333",
        "tickColor": "#333333",
        "tickCount": 6,
        "labelOverlap": True,
    },
    "view": {"stroke": None},
}
_FRAME = {
    "width": "container",
    "autosize": {"type": "fit", "contains": "padding"},
    "config": _CONFIG,
}


def _number(field: str, title: str) -> dict[str, str]:
    """Returns a value under the pointer, with all digits that the data have."""
    return {"field": field, "type": "quantitative", "title": title, "format": ".15~g"}


def _lines(interpolate: str, band: str) -> dict[str, Any]:
    """Returns curves with bands, crosses where they end early, and the values under the pointer."""
    ends = [_number("low", f"{band} from"), _number("high", "to")] if band else []
    return _FRAME | {
        "height": 290,
        "encoding": {"x": _X, "color": _COLOR},
        "layer": [
            {
                "transform": [{"filter": "isValid(datum.low)"}],
                "mark": {"type": "area", "opacity": 0.16, "clip": True},
                "encoding": {
                    "y": _Y | {"field": "low"},
                    "y2": {"field": "high"},
                },
            },
            {
                "mark": {
                    "type": "line",
                    "strokeWidth": 2,
                    "interpolate": interpolate,
                    "clip": True,
                },
                "encoding": {"y": _Y, "strokeDash": _DASH},
            },
            {
                "transform": [{"filter": "datum.end"}],
                "mark": {"type": "point", "shape": "cross", "angle": 45, "size": 110,
                         "filled": True},
                "encoding": {"y": _Y},
            },
            {
                "params": [
                    {
                        "name": "hover",
                        "select": {
                            "type": "point",
                            "on": "pointerover",
                            "nearest": True,
                            "clear": "pointerout",
                        },
                    }
                ],
                "mark": {"type": "point", "filled": True, "size": 70},
                "encoding": {
                    "y": _Y,
                    "opacity": {"condition": {"param": "hover", "empty": False, "value": 1},
                                "value": 0},
                    "tooltip": [
                        # Without a format, Vega-Lite 6.4 reads texts from the wrong object when the
                        # nearest point is chosen, and shows "undefined".
                        {"field": "method", "type": "nominal", "title": "method",
                         "formatType": "toString", "format": ""},
                        _number("x", "$x"),
                        _number("mean", "$value"),
                        *ends,
                    ],
                },
            },
        ],
    }  # fmt: skip


_MAP = _FRAME | {
    "height": "$height",
    "mark": {"type": "rect", "stroke": "white", "strokeWidth": 0.3},
    "encoding": {
        "x": {"field": "client", "type": "ordinal", "title": "$x",
              "scale": {"domain": "$xs"}, "axis": {"labelAngle": 0}},
        "y": {"field": "label", "type": "ordinal", "title": "$y", "scale": {"domain": "$ys"}},
        "color": {
            "field": "examples",
            "type": "quantitative",
            "title": "examples",
            "scale": {"type": "sqrt", "range": ["#DCEAF5", "#0072B2", "#00304D"], "domainMin": 0},
            "legend": {"orient": "top", "direction": "horizontal", "gradientThickness": 10},
        },
        "tooltip": [
            {"field": "client", "type": "ordinal"},
            {"field": "label", "type": "ordinal"},
            {"field": "examples", "type": "quantitative"},
        ],
    },
}  # fmt: skip

_CELL_X = {"field": "x", "type": "ordinal", "title": "$x", "sort": "$xs",
           "scale": {"domain": "$xs"}, "axis": {"labelAngle": 0}}  # fmt: skip
_CELL_Y = {"field": "y", "type": "ordinal", "title": "$y", "sort": "$ys",
           "scale": {"domain": "$ys"}}  # fmt: skip
_CELL_TIP = [
    {"field": "x", "type": "nominal", "title": "$x"},
    {"field": "y", "type": "nominal", "title": "$y"},
]
_GRID = _FRAME | {
    "height": "$height",
    "encoding": {"x": _CELL_X, "y": _CELL_Y},
    "layer": [
        {
            "transform": [{"filter": "isValid(datum.mean)"}],
            "mark": {"type": "rect", "stroke": "white"},
            "encoding": {
                "color": {
                    "field": "mean",
                    "type": "quantitative",
                    "title": "$value",
                    "scale": {"range": ["#EEF4F9", "#8DBBDC", "#3E8CC2"],
                              "reverse": "$reversed", "zero": False},
                    "legend": {"orient": "top", "direction": "horizontal",
                               "gradientThickness": 10, "format": ".3~g"},
                },
                "tooltip": [*_CELL_TIP, _number("mean", "$value")],
            },
        },
        {
            "transform": [{"filter": "!isValid(datum.mean)"}],
            "mark": {"type": "rect", "stroke": "white", "fill": "#E4E4E4"},
            "encoding": {
                "tooltip": [*_CELL_TIP, {"field": "failed", "type": "nominal", "title": "failed"}]
            },
        },
        {
            "transform": [{"filter": "datum.best"}],
            "mark": {"type": "rect", "fill": None, "stroke": "#D55E00", "strokeWidth": 3},
        },
        {"mark": {"type": "text", "fontSize": 12, "color": "#111111"},
         "encoding": {"text": {"field": "text"}}},
    ],
}  # fmt: skip

SPECS = {
    "lines": _lines("linear", "band"),
    "shares": _lines("step-after", ""),
    "map": _MAP,
    "grid": _GRID,
}
