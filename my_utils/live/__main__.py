from my_utils.live.command import main

raise SystemExit(main())
